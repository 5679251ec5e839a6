// Takes the memory of an engine. On a device a pass may take some more for partial states of
// attention and for what cuBLASLt loads.
// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_parts.h"

#include <utility>

#include "model/device_forward.h"
#include "model/forward.h"

namespace kvlane {
namespace {

Result<EngineParts> parts_on_host(const Model& model, const EngineOptions& options,
                                  std::unique_ptr<CodecChoice> codecs) {
  const KvShape shape = model.config().kv_shape();
  KVLANE_ASSIGN(BlockPool pool, BlockPool::create(shape, options.kv_bytes));
  KVLANE_ASSIGN(BlockArena arena, BlockArena::create(shape.block_bytes(), options.host_bytes));
  KVLANE_ASSIGN(
      std::unique_ptr<ForwardPass> forward,
      Forward::create(model, options.chunk_tokens + options.sequences_max, options.sequences_max));
  return EngineParts{std::move(codecs), {},         std::move(pool),   std::move(arena),
                     SlabLane(),        SlabLane(), std::move(forward)};
}

Result<EngineParts> parts_on_device(const Model& model, Accelerator& device,
                                    const EngineOptions& options,
                                    std::unique_ptr<CodecChoice> codecs) {
  const KvShape shape = model.config().kv_shape();
  KVLANE_ASSIGN(
      std::unique_ptr<ForwardPass> forward,
      DeviceForward::create(model.on_device(), device, options.chunk_tokens + options.sequences_max,
                            options.sequences_max));
  KVLANE_ASSIGN(Accelerator::Memory memory, device.allocate(options.kv_bytes));
  KVLANE_ASSIGN(const MemoryCopy copy, device.copies());
  KVLANE_ASSIGN(BlockPool pool, BlockPool::over(shape, {memory.get(), options.kv_bytes}, copy));
  KVLANE_ASSIGN(BlockArena arena,
                BlockArena::create(shape.block_bytes(), options.host_bytes, copy));
  KVLANE_ASSIGN(SlabLane sending, SlabLane::open(device, shape));
  KVLANE_ASSIGN(SlabLane receiving, SlabLane::open(device, shape));
  return EngineParts{std::move(codecs),  std::move(memory),    std::move(pool),   std::move(arena),
                     std::move(sending), std::move(receiving), std::move(forward)};
}

}  // namespace

Result<EngineParts> make_parts(const Model& model, const EngineOptions& options) {
  const PlaneShape plane = plane_shape(model.config().kv_shape(), kBlockTokens);
  KVLANE_ASSIGN(std::unique_ptr<CodecChoice> codecs,
                CodecChoice::create(options.kv_codec, model.isa(), plane));
  Accelerator* const device = model.device();
  return device == nullptr ? parts_on_host(model, options, std::move(codecs))
                           : parts_on_device(model, *device, options, std::move(codecs));
}

}  // namespace kvlane
