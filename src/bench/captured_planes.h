// Real values for codecs: the K, V and hidden states that a model computes over a text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "model/model.h"

namespace kvlane {

// K is after the rotation of RoPE; hidden states are what enters a layer, rounded to bfloat16.
enum class Tensor : std::uint8_t { kK, kV, kHidden };
inline constexpr std::array kAllTensors = {Tensor::kK, Tensor::kV, Tensor::kHidden};
std::string_view tensor_name(Tensor tensor);  // "k", "v", "hidden"

// BF16 planes of whole blocks of 64 tokens, as they would be sent, one after another.
class CapturedPlanes {
 public:
  CapturedPlanes(int layers, const PlaneShape& kv, const PlaneShape& hidden)
      : kv_(kv), hidden_(hidden), values_(kAllTensors.size() * layers) {}

  int layers() const { return static_cast<int>(values_.size() / kAllTensors.size()); }
  // K and V: [kv_heads][64][head_dim]. Hidden states: [1][64][hidden].
  const PlaneShape& shape(Tensor tensor) const { return tensor == Tensor::kHidden ? hidden_ : kv_; }
  std::vector<std::uint16_t>& values(int layer, Tensor tensor) {
    return values_[kAllTensors.size() * layer + static_cast<std::size_t>(tensor)];
  }
  const std::vector<std::uint16_t>& values(int layer, Tensor tensor) const {
    return values_[kAllTensors.size() * layer + static_cast<std::size_t>(tensor)];
  }
  ByteView bytes(int layer, Tensor tensor) const {
    return std::as_bytes(std::span(values(layer, tensor)));
  }

 private:
  PlaneShape kv_, hidden_;
  std::vector<std::vector<std::uint16_t>> values_;
};

// Runs the model over `tokens`, all inside its vocabulary, as run_sequences() does. The last tokens
// of a sequence, which do not fill a block, are left out; there is at least one block. `progress`
// is told tokens done and in total.
Result<CapturedPlanes> capture_planes(
    const Model& model, std::span<const std::int32_t> tokens,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace kvlane
