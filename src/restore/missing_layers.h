// Which layers of a block a store lacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "format/extent.h"
#include "restore/layer_runs.h"
#include "store/store.h"

namespace kvlane {

// The layers of `run` that `store` does not hold of this block, in runs. Another form may have
// saved some of them, cut otherwise, and the store takes nothing that overlaps what it has.
std::vector<LayerRun> missing_layers(const Store& store, const BlockKey& key, LayerRun run);

}  // namespace kvlane
