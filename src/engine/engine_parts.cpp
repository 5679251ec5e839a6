// Takes the memory of an engine. On a device a pass may take some more for partial states of
// attention and for what cuBLASLt loads.
// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_parts.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "engine/ranked_state.h"
#include "model/device_forward.h"
#include "model/format_codes.h"
#include "model/forward.h"
#include "quant/heads_together.h"
#include "ranks/rank_group.h"

namespace kvlane {
namespace {

// That leave a device in one launch: planes for a quarter of the multiprocessors of a large GPU, in
// a few megabytes of buffers.
constexpr int kCodedSlabs = 16;

// Blocks of rows that a coded cache has: for each running sequence its open block and its window,
// and for the prompt tokens of a step, as far as half of the memory goes. `copies`: how often each
// block is kept.
Result<int> row_blocks(const EngineOptions& options, const KvShape& shape, int copies = 1) {
  const KvWindow window = options.kv_format->window();
  const std::size_t of_sequence = std::size_t{1} + window.sink + window.recent;
  // With these the first in rank always gets on.
  const std::size_t least = blocks_for(options.chunk_tokens) + of_sequence;
  const std::size_t most = least + options.sequences_max * (of_sequence + 1);
  const std::size_t half = options.kv_bytes / 2 / copies / shape.block_bytes();
  if (half < least) {
    return invalid_argument(
        "KV format '" + options.kv_format->name() + "' needs " +
        std::to_string(2 * least * copies * shape.block_bytes()) +
        " bytes of KV memory at least, half of it for rows of 16 bits; there are " +
        std::to_string(options.kv_bytes));
  }
  return static_cast<int>(std::min(half, most));
}

struct Pools {
  BlockPool blocks;
  std::unique_ptr<BlockPool> rows;
};

Result<Pools> make_pools(const EngineOptions& options, const KvShape& shape) {
  if (!options.kv_format) {
    KVLANE_ASSIGN(BlockPool blocks, BlockPool::create(shape, options.kv_bytes));
    return Pools{std::move(blocks), nullptr};
  }
  KVLANE_ASSIGN(const int count, row_blocks(options, shape));
  const std::size_t row_bytes = count * shape.block_bytes();
  KVLANE_ASSIGN(BlockPool rows, BlockPool::create(shape, row_bytes));
  KVLANE_ASSIGN(BlockPool sealed, BlockPool::create_sealed(shape, options.kv_format->slab_sizes(),
                                                           options.kv_bytes - row_bytes));
  return Pools{std::move(sealed), std::make_unique<BlockPool>(std::move(rows))};
}

Result<EngineParts> parts_on_host(const Model& model, const EngineOptions& options,
                                  std::unique_ptr<CodecChoice> codecs) {
  const KvShape shape = model.config().kv_shape();
  KVLANE_ASSIGN(Pools pools, make_pools(options, shape));
  KVLANE_ASSIGN(BlockArena arena,
                BlockArena::create(pools.blocks.block_bytes(), options.host_bytes));
  KVLANE_ASSIGN(
      std::unique_ptr<ForwardPass> forward,
      Forward::create(model, options.rows_max(), options.sequences_max, options.kv_format.get()));
  EngineParts parts{.codecs = std::move(codecs),
                    .pool = std::move(pools.blocks),
                    .rows = std::move(pools.rows),
                    .arena = std::move(arena),
                    .forward = std::move(forward)};
  return parts;
}

// Over memory of a device: first rows, which end at a multiple of what slabs want to begin at.
Result<Pools> make_pools_over(std::span<std::byte> memory, const EngineOptions& options,
                              const KvShape& shape, const MemoryCopy& copy) {
  if (!options.kv_format) {
    KVLANE_ASSIGN(BlockPool blocks, BlockPool::over(shape, memory, copy));
    return Pools{std::move(blocks), nullptr};
  }
  KVLANE_ASSIGN(const int count, row_blocks(options, shape));
  const std::size_t row_bytes = count * shape.block_bytes();
  KVLANE_ASSIGN(BlockPool rows, BlockPool::over(shape, memory.first(row_bytes), copy));
  KVLANE_ASSIGN(BlockPool sealed, BlockPool::over_sealed(shape, options.kv_format->slab_sizes(),
                                                         memory.subspan(row_bytes), copy));
  return Pools{std::move(sealed), std::make_unique<BlockPool>(std::move(rows))};
}

// As much as restores read ahead: what finds no room there comes through the host.
Result<std::unique_ptr<DirectLanding>> direct_landing(Accelerator& device,
                                                      const StateOptions& state) {
  gpu::DirectStorage* const storage = state.store->direct_storage();
  if (storage == nullptr) {
    if (!state.needs_direct) return std::unique_ptr<DirectLanding>();
    return invalid_argument("the state store has no way to memory of a device but the host's");
  }
  auto landing = DirectLanding::open(device, *storage, state.direct_bytes, kPieceBlocks);
  if (landing.ok() || state.needs_direct) return landing;
  if (state.on_no_direct) state.on_no_direct(landing.status());
  return std::unique_ptr<DirectLanding>();
}

Result<EngineParts> parts_on_device(const Model& model, Accelerator& device,
                                    const EngineOptions& options,
                                    std::unique_ptr<CodecChoice> codecs) {
  const KvShape shape = model.config().kv_shape();
  std::optional<DeviceFormat> format;
  if (options.kv_format) {
    KVLANE_ASSIGN(format, device_codes(*options.kv_format));
  }
  KeptLayers kept;
  const StateForms& forms = options.state.forms;
  if (options.state.store != nullptr) kept = {forms.hidden_first, forms.hidden_last};
  KVLANE_ASSIGN(std::unique_ptr<ForwardPass> forward,
                DeviceForward::create(model.on_device(), device, options.rows_max(),
                                      options.sequences_max, true, format, kept));
  KVLANE_ASSIGN(Accelerator::Memory memory, device.allocate(options.kv_bytes));
  KVLANE_ASSIGN(const MemoryCopy copy, device.copies());
  KVLANE_ASSIGN(Pools pools,
                make_pools_over({memory.get(), options.kv_bytes}, options, shape, copy));
  KVLANE_ASSIGN(Accelerator::Memory host_memory, device.allocate_host(options.host_bytes));
  BlockArena arena =
      BlockArena::over(pools.blocks.block_bytes(), {host_memory.get(), options.host_bytes}, copy);
  const std::size_t slab_bytes = pools.blocks.slab_sizes().largest();
  KVLANE_ASSIGN(SlabLane sending, SlabLane::open(device, shape, kCodedSlabs, slab_bytes));
  KVLANE_ASSIGN(SlabLane receiving, SlabLane::open(device, shape, 1, slab_bytes));
  StateLanes state;
  if (options.state.store != nullptr) {
    KVLANE_ASSIGN(state.saving, SlabLane::open(device, shape, kCodedSlabs, slab_bytes));
    KVLANE_ASSIGN(state.restoring,
                  SlabLane::open(device, shape, kPieceBlocks, slab_bytes, SlabLanding::kRooms));
    KVLANE_ASSIGN(state.direct, direct_landing(device, options.state));
  }
  EngineParts parts{.codecs = std::move(codecs),
                    .device_memory = std::move(memory),
                    .pool = std::move(pools.blocks),
                    .rows = std::move(pools.rows),
                    .host_memory = std::move(host_memory),
                    .arena = std::move(arena),
                    .sending = std::move(sending),
                    .receiving = std::move(receiving),
                    .state = std::move(state),
                    .forward = std::move(forward)};
  return parts;
}

// Memory of other processes: pool and arena count in places of theirs. What all of them take
// together is what there is, also where each rank of a stage has whole blocks.
Result<EngineParts> parts_on_ranks(const Model& model, RankGroup& group,
                                   const EngineOptions& options,
                                   std::unique_ptr<CodecChoice> codecs) {
  const KvShape shape = model.config().kv_shape();
  const KvFormat* const format = options.kv_format.get();
  const SlabSizes sizes =
      format != nullptr ? format->slab_sizes() : SlabSizes(shape.layers, shape.slab_bytes());
  const auto fitting = [&](std::size_t bytes) {
    return static_cast<int>(std::min<std::size_t>(bytes / sizes.block_bytes(), INT32_MAX));
  };
  const int copies = format != nullptr && codes_heads_together(*format) ? group.ranks() : 1;
  int rows = 0;
  if (format != nullptr) {
    KVLANE_ASSIGN(rows, row_blocks(options, shape, copies));
  }
  const Plan plan{.format = format != nullptr ? format->name() : "bf16",
                  .blocks = fitting(options.kv_bytes / copies - rows * shape.block_bytes()),
                  .row_blocks = rows,
                  .arena_blocks = fitting(options.host_bytes / copies),
                  .rows_max = options.rows_max(),
                  .logits_max = options.sequences_max,
                  .context = model.context(),
                  .tables = format != nullptr ? format->tables() : 0,
                  .state = options.state.on_ranks
                               ? std::optional(state_plan(options.state, options.kv_codebooks))
                               : std::nullopt};
  KVLANE_TRY(group.prepare(shape, format, plan));
  KVLANE_ASSIGN(
      BlockPool pool,
      BlockPool::over_sealed(shape, sizes, group.places(RankMemory::kBlocks), group.copies()));
  std::unique_ptr<BlockPool> row_pool;
  if (format != nullptr) {
    KVLANE_ASSIGN(BlockPool made,
                  BlockPool::over(shape, group.places(RankMemory::kRows), group.copies()));
    row_pool = std::make_unique<BlockPool>(std::move(made));
  }
  const std::size_t slab = std::max(shape.slab_bytes(), sizes.largest());
  KVLANE_ASSIGN(SlabLane sending, SlabLane::over(group.lane(), slab));
  KVLANE_ASSIGN(SlabLane receiving, SlabLane::over(group.lane(), slab));
  EngineParts parts{.codecs = std::move(codecs),
                    .pool = std::move(pool),
                    .rows = std::move(row_pool),
                    .arena = BlockArena::over(sizes.block_bytes(), group.places(RankMemory::kArena),
                                              group.copies()),
                    .sending = std::move(sending),
                    .receiving = std::move(receiving),
                    .forward = group.forward(model)};
  return parts;
}

}  // namespace

Result<EngineParts> make_parts(const Model& model, const EngineOptions& options) {
  const PlaneShape plane = plane_shape(model.config().kv_shape(), kBlockTokens);
  KVLANE_ASSIGN(std::unique_ptr<CodecChoice> codecs,
                CodecChoice::create(options.kv_codec, model.isa(), plane));
  if (options.ranks != nullptr) {
    return parts_on_ranks(model, *options.ranks, options, std::move(codecs));
  }
  Accelerator* const device = model.device();
  return device == nullptr ? parts_on_host(model, options, std::move(codecs))
                           : parts_on_device(model, *device, options, std::move(codecs));
}

}  // namespace kvlane
