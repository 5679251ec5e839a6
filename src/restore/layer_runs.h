// Which layers of a block make one extent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/extent.h"

namespace kvlane {

// Extents of less are read slower than disks can; spec/store.md, section 1.
inline constexpr std::size_t kExtentBytesWanted = std::size_t{256} << 10;

struct LayerRun {
  int first;
  int count;

  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

// Cuts layers first ... last - 1 where the sums of layer_bytes[0], [1], ... from layer 0 on reach
// kExtentBytesWanted: so whoever stores other layers of the same block cuts at the same places.
inline std::vector<LayerRun> layer_runs(const std::vector<std::size_t>& layer_bytes, int first,
                                        int last) {
  std::vector<LayerRun> runs;
  const int layers = static_cast<int>(layer_bytes.size());
  for (int begin = 0, end = 0; begin < layers; begin = end) {
    std::size_t bytes = 0;
    while (end < layers && bytes < kExtentBytesWanted && end - begin < kExtentLayersMax) {
      bytes += layer_bytes[end++];
    }
    const int from = std::max(begin, first), to = std::min(end, last);
    if (from < to) runs.push_back({from, to - from});
  }
  return runs;
}

}  // namespace kvlane
