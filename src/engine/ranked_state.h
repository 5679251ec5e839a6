// State stores of the ranks that compute the model: each saves and brings back its own part, as the
// engine of their head says (spec/ranks.md section 6).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "engine/state_keeper.h"
#include "engine/state_options.h"
#include "quant/kv_format.h"
#include "ranks/rank_group.h"

namespace kvlane {

// What ranks are told of `options` when they take their memory; `codebooks` of the model's layers,
// or none.
StatePlan state_plan(const StateOptions& options, const std::vector<Codebook>& codebooks);

// `block_bytes`: of a block in all ranks. `format`: of the cache, null for rows. `on_saved` and
// `wake` come on the network's thread, and may come after the end of what is made here. The group
// outlives it.
std::unique_ptr<StateKeeper> keep_state_on_ranks(RankGroup& group, const StateOptions& options,
                                                 int layers, std::size_t block_bytes,
                                                 const KvFormat* format,
                                                 std::function<void(BlockId)> on_saved,
                                                 std::function<void()> wake);

}  // namespace kvlane
