// A state store of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "codec/codec.h"
#include "engine/state_keeper.h"
#include "engine/state_options.h"
#include "model/model.h"
#include "quant/kv_format.h"

namespace kvlane {

// The ways to the cache, where that is on a device: of the saver's thread, for SlabLanding, and
// from the disk directly; null: there is none.
struct StateLanes {
  SlabLane saving;
  SlabLane restoring;
  std::unique_ptr<DirectLanding> direct;
};

// `on_saved` and `wake` come on other threads, on_saved() not after the end of what is made here.
// All others outlive it. On a device `forward` keeps the layers whose hidden states are saved.
Result<std::unique_ptr<StateKeeper>> keep_state_here(
    const Model& model, const BlockPool& pool, ForwardPass& forward, int pass_rows_max,
    const KvFormat* format, const StateOptions& options, const std::vector<Codebook>& codebooks,
    StateLanes lanes, std::function<void(BlockId)> on_saved, std::function<void()> wake);

}  // namespace kvlane
