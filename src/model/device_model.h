// A model's weights in the memory of a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/accelerator.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/safetensors.h"
#include "ops/rope_table.h"

namespace kvlane {

// Where weights come from: a checkpoint's tensors by Hugging Face's names, in this shape or an
// error. Views are not used after the call that asked.
using TensorSource = std::function<Result<TensorView>(const std::string& name,
                                                      const std::vector<std::int64_t>& shape)>;

// Of one layer. Matrices are [outputs][inputs] in BF16, stacked where they share their input.
struct DeviceLayer {
  const float* attention_norm;  // [hidden]
  const float* q_norm;          // [head_dim], null without norms of heads
  const float* k_norm;
  const std::byte* qkv;  // hidden -> (heads + 2 kv_heads) * head_dim
  const std::byte* attention_out;
  const float* ffn_norm;
  const std::byte* ffn_in;  // hidden -> 2 ffn, gate first
  const std::byte* ffn_out;
};

// Immutable after load. Does not outlive its accelerator.
class DeviceModel {
 public:
  // Copies all weights of a layout to the device, and the angles of positions 0 ... positions - 1.
  // kUnsupported for matrices that are not BF16 and for dimensions that kernels do not have, naming
  // them; `progress`, which may be empty, is told bytes done and in total.
  static Result<DeviceModel> load(
      const ModelConfig& config, const ModelLayout& layout, const TensorSource& tensors,
      const RopeTable& rope, int positions, Accelerator& device,
      const std::function<void(std::uint64_t, std::uint64_t)>& progress);

  const ModelConfig& config() const { return config_; }
  const std::vector<DeviceLayer>& layers() const { return layers_; }
  const std::byte* embedding() const { return embedding_; }  // [vocab][hidden], BF16
  const float* final_norm() const { return final_norm_; }
  const std::byte* head() const { return head_; }  // [vocab][hidden], BF16
  const float* angles() const { return angles_; }  // [positions][cos, sin][head_dim / 2]
  int positions() const { return positions_; }
  std::size_t bytes() const { return bytes_; }

 private:
  class Loader;
  DeviceModel() = default;

  ModelConfig config_;
  Accelerator::Memory memory_;  // all that follows
  std::size_t bytes_ = 0;
  std::vector<DeviceLayer> layers_;
  const std::byte* embedding_ = nullptr;
  const float* final_norm_ = nullptr;
  const std::byte* head_ = nullptr;
  const float* angles_ = nullptr;
  int positions_ = 0;
};

}  // namespace kvlane
