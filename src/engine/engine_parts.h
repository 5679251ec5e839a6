// What an engine computes with, on the CPU or on a device: memory, the forward pass, and the ways
// to slabs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cache/block_arena.h"
#include "cache/block_pool.h"
#include "engine/codec_choice.h"
#include "engine/engine.h"
#include "engine/local_state.h"
#include "model/forward_pass.h"
#include "model/model.h"
#include "model/slab_lane.h"

namespace kvlane {

struct EngineParts {
  std::unique_ptr<CodecChoice> codecs;
  Accelerator::Memory device_memory;  // of the pool, where the model is on a device
  BlockPool pool;                     // of all blocks
  std::unique_ptr<BlockPool> rows;    // of a coded cache
  Accelerator::Memory host_memory;    // of the arena, where the model is on a device
  BlockArena arena;
  SlabLane sending;    // of the sender's thread
  SlabLane receiving;  // of the network's thread
  StateLanes state;    // where there is a state store
  std::unique_ptr<ForwardPass> forward;
};

// Where the model is. It outlives the parts, as does its device.
Result<EngineParts> make_parts(const Model& model, const EngineOptions& options);

}  // namespace kvlane
