// Where the sealed slabs of a block lie: one after another, not all of one size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvlane {

// Sizes are multiples of 64, so every slab is aligned as its block is. Immutable.
class SlabSizes {
 public:
  // Of each layer; at least one.
  explicit SlabSizes(std::span<const std::size_t> bytes) : ends_(bytes.size()) {
    std::size_t end = 0;
    for (std::size_t layer = 0; layer < bytes.size(); ++layer) ends_[layer] = end += bytes[layer];
    for (const std::size_t each : bytes) largest_ = std::max(largest_, each);
  }
  SlabSizes(int layers, std::size_t bytes)
      : SlabSizes(std::vector<std::size_t>(static_cast<std::size_t>(layers), bytes)) {}

  int layers() const { return static_cast<int>(ends_.size()); }
  std::size_t offset(int layer) const { return layer == 0 ? 0 : ends_[layer - 1]; }
  std::size_t bytes(int layer) const { return ends_[layer] - offset(layer); }
  std::size_t largest() const { return largest_; }
  // Of all layers.
  std::size_t block_bytes() const { return ends_.back(); }

 private:
  std::vector<std::size_t> ends_;
  std::size_t largest_ = 0;
};

}  // namespace kvlane
