// Which layers of a block make one extent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
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

// Cuts layers first, first + 1, ... of so many bytes into runs of bytes_min or more. What is left
// at the end goes with the run before, unless that were too many layers for an extent.
inline std::vector<LayerRun> layer_runs(int first, const std::vector<std::size_t>& layer_bytes,
                                        std::size_t bytes_min = kExtentBytesWanted) {
  std::vector<LayerRun> runs;
  std::size_t bytes = 0;  // of the last run
  int layer = first;
  for (const std::size_t each : layer_bytes) {
    if (runs.empty() || bytes >= bytes_min || runs.back().count == kExtentLayersMax) {
      runs.push_back({layer, 0});
      bytes = 0;
    }
    bytes += each;
    ++runs.back().count;
    ++layer;
  }
  if (runs.size() < 2 || bytes >= bytes_min) return runs;
  const LayerRun left = runs.back();
  LayerRun& before = *std::prev(runs.end(), 2);
  if (before.count + left.count > kExtentLayersMax) return runs;
  before.count += left.count;
  runs.pop_back();
  return runs;
}

}  // namespace kvlane
