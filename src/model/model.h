// A loaded model: packed weights, ready for forward passes (model/forward.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cpu/isa.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/device_model.h"
#include "model/part.h"
#include "ops/linear.h"
#include "ops/rope_table.h"

namespace kvlane {

struct ModelOptions {
  Isa isa = Isa::kScalar;
  int context_max = 0;  // --max-model-len: at most the model's own context; 0: that
  // Where forward passes run; null: on the CPU. Outlives the model.
  Accelerator* device = nullptr;
  // Of a model that several ranks compute, on CPUs: this one's, or nothing at all, of a model that
  // others compute.
  ModelPart part{};
  bool weights = true;
  // Told bytes of weights done and in total, from the loading thread; may be empty.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

struct NormWeights {
  std::vector<float> weight;
  std::vector<float> bias;  // of layer norms
};

// The weights of one layer. Products are stacked where they share their input.
struct LayerWeights {
  NormWeights attention_norm;   // [hidden]
  NormWeights q_norm;           // [head_dim], empty without QK-norm
  NormWeights k_norm;           // [head_dim]
  std::unique_ptr<Linear> qkv;  // hidden -> (heads + 2 kv_heads) * head_dim
  std::unique_ptr<Linear> attention_out;
  NormWeights ffn_norm;
  std::unique_ptr<Linear> ffn_in;  // hidden -> 2 ffn, gate first; or ffn without gate
  std::unique_ptr<Linear> ffn_out;
};

// Immutable after load, thread-safe.
class Model {
 public:
  // Reads all weights once: hashes them, packs them or copies them to the device, lets the mapped
  // pages go.
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& directory,
                                             const ModelOptions& options);

  // Of what is here: config_of() the whole model's.
  const ModelConfig& config() const { return config_; }
  const ModelConfig& whole_config() const { return checkpoint_.config(); }
  const ModelPart& part() const { return part_; }
  // Of the whole model.
  const ModelIdentity& identity() const { return identity_; }
  Isa isa() const { return isa_; }
  // Where its weights were read from.
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // Of what enters the products of all layers, on a CPU: BF16 where all their weights are, F32
  // else. Also of a model whose weights are elsewhere.
  ElementType row_type() const { return row_type_; }
  // Most tokens of a sequence, prompt and completion together.
  int context() const { return context_; }
  // Bytes of packed weights, and of the embedding table where it is not one of them; or what the
  // device holds of the model.
  std::uint64_t weight_bytes() const { return weight_bytes_; }

  // Where passes run, null for the CPU, and the weights there.
  Accelerator* device() const { return device_; }
  const DeviceModel& on_device() const { return *on_device_; }

  // For the forward pass on the CPU. layers() begin with the part's first; embeddings are of
  // the first stage, the final norm and the head, with the rank's share of its outputs, of the
  // last.
  const std::vector<LayerWeights>& layers() const { return layers_; }
  // By its number in the whole model; one of this part's.
  const LayerWeights& layer(int number) const {
    return layers_[number - layers_of(whole_config(), part_).first];
  }
  const NormWeights& final_norm() const { return final_norm_; }
  const Linear& head() const { return *head_; }
  const RopeTable& rope() const { return rope_; }
  // What enters the first layer: the embedding of a token, and of its position where that is
  // learned, as F32 [hidden]. `token` is inside the vocabulary, `position` inside the context.
  void embed(std::int32_t token, int position, float* row) const;
  // A row's norm of this model's kind: [n] each; x and y may be the same.
  void norm(const NormWeights& weights, const float* x, int n, float* y) const;

 private:
  class Loader;
  Model(Checkpoint checkpoint, const ModelPart& part)
      : checkpoint_(std::move(checkpoint)),
        part_(part),
        config_(config_of(checkpoint_.config(), part)) {}

  Checkpoint checkpoint_;
  ModelPart part_;
  ModelConfig config_;
  ModelIdentity identity_{};
  ElementType row_type_ = ElementType::kF32;
  Isa isa_ = Isa::kScalar;
  int context_ = 0;
  std::uint64_t weight_bytes_ = 0;
  TensorView embedding_;          // in the mapped checkpoint, unless head_ has it
  std::vector<float> positions_;  // [context][hidden] of learned ones, else empty
  std::vector<LayerWeights> layers_;
  NormWeights final_norm_;
  std::unique_ptr<Linear> head_;
  RopeTable rope_;
  Accelerator* device_ = nullptr;
  std::optional<DeviceModel> on_device_;
};

// Inverse frequencies of the rotary pairs, [head_dim / 2], with the long-context correction for
// sequences of up to `context` tokens. Zeros, so that nothing is turned, where positions are
// learned.
std::vector<float> rope_inverse_frequencies(const ModelConfig& config, int context);

}  // namespace kvlane
