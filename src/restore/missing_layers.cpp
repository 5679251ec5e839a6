// Layer by layer.
// SPDX-License-Identifier: Apache-2.0
#include "restore/missing_layers.h"

namespace kvlane {

std::vector<LayerRun> missing_layers(const Store& store, const BlockKey& key, LayerRun run) {
  std::vector<LayerRun> missing;
  for (int layer = run.first; layer < run.first + run.count; ++layer) {
    if (store.holds(key, layer, 1)) continue;
    if (missing.empty() || missing.back().first + missing.back().count < layer) {
      missing.push_back({layer, 0});
    }
    ++missing.back().count;
  }
  return missing;
}

}  // namespace kvlane
