// A family of architectures: what its config.json means, and where its tensors are. Each has a file
// of its own, family_*.cpp, and a line in family.cpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/gguf_family.h"
#include "model/layout.h"
#include "model/plain_layout.h"

namespace kvlane {

struct Family {
  std::string_view architecture;  // as config.json names it
  std::string_view model_type;    // the same, of configurations without architecture
  // Ids where config.json is silent; -1: none.
  std::int32_t bos;
  std::int32_t eos;
  // All but type and special tokens, with the defaults of transformers. Refuses by name what would
  // change the result.
  void (*read)(FieldReader& fields, ModelConfig& config);
  LayerLayout (*layer)(const ModelConfig& config, int index);
  ModelLayout (*ends)(const ModelConfig& config);  // without layers
  const GgufForm* gguf = nullptr;  // none: llama.cpp has no such architecture, or another has it
};

std::span<const Family* const> families();
// Llama's where there is none of this architecture.
const Family& family_of(const ModelConfig& config);

// What families share.

struct DimensionDefaults {
  int context;
  int kv_heads = 0;  // 0: as many as query heads
  int head_dim = 0;  // 0: hidden / heads
  double norm_eps = 1e-6;
  // RoPE is LongRoPE or not scaled, of models that had so much context before; 0: as every other.
  int longrope_context = 0;
};
// By the names of Llama and those who followed it: dimensions, RoPE, and that nothing else is asked
// for.
void read_llama_like(FieldReader& fields, const DimensionDefaults& defaults, ModelConfig& config);
// Of dimensions that are read.
void check_dimensions(FieldReader& fields, const ModelConfig& config);
void read_rope(FieldReader& fields, ModelConfig& config, int longrope_context = 0);
void refuse_quantised(FieldReader& fields);
// Layers from `first_layer` on attend to the last `window` tokens; INT32_MAX: to all.
void set_window(FieldReader& fields, int window, int first_layer, ModelConfig& config);

// Of layers that are read.
void check_layer_types(FieldReader& fields, const ModelConfig& config);

extern const Family kLlamaFamily, kMistralFamily, kQwen2Family, kQwen3Family, kPhi3Family,
    kFalconFamily, kOptFamily;

}  // namespace kvlane
