// Random checkpoints in the shape of a real model: for benchmarks and tests where the words do not
// matter, but sizes and types do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

struct SynthOptions {
  std::string config_json;  // the text of a config.json that parse_model_config accepts
  std::string config_name = "config.json";  // what errors call it
  int layers = 0;                           // instead of the configuration's; 0: as it says
  std::optional<ElementType> type;          // instead of the configuration's dtype
  std::uint64_t seed = 0;
  // Where tokenizer and chat template are copied from; empty: the checkpoint has none.
  std::filesystem::path tokenizer_directory;
  // Gets bytes written and bytes in total, from one thread at a time; may be empty.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

// Writes config.json and model.safetensors to `directory`, which is created if need be and may not
// hold a checkpoint yet. The weights are a pure function of options other than progress: the same
// bits on any machine and with any number of threads.
//
// Projections and embeddings are bell-shaped with the standard deviation that initializer_range
// gives at a width of 4096, adapted to the number of inputs so that activations, attention scores
// and logits have about the same size at any width; what is added to the residual stream is damped
// by the depth. Norms are 1. Memory: a few MB, whatever the size.
Status write_synthetic_checkpoint(const SynthOptions& options,
                                  const std::filesystem::path& directory);

}  // namespace kvlane
