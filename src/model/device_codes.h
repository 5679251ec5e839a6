// Coded caches on a device: what of a pass is about codes. Blocks that a pass completes are sealed
// there layer by layer, and attention computes on sealed pages as they are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "model/accelerator.h"
#include "model/config.h"

namespace kvlane {

// A format that devices have kernels for (attention/hack_decode_gpu.h), rounding to the nearest
// code.
struct DeviceCodes {
  HackKind kind;
  HackShape shape;
  KvWindow window;
};

// Buffers for passes of up to `rows_max` rows, and the launches. Thread-compatible; does not
// outlive the device.
class DeviceCodedPass {
 public:
  // kInvalidArgument for a model that has no kernel.
  static Result<std::unique_ptr<DeviceCodedPass>> create(const DeviceCodes& codes,
                                                         const ModelConfig& config,
                                                         Accelerator& device, int rows_max);

  const DeviceCodes& codes() const { return codes_; }
  // What sealed pages are cut by in decode attention.
  const DecodeShape& decode_shape() const { return decode_shape_; }

  // One layer of a cache: rows and sealed slabs of block 0, and how far from there to block 1.
  struct Layer {
    int index;
    const std::byte* rows;
    std::size_t rows_block_bytes;
    std::byte* sealed;
    std::size_t sealed_block_bytes;
  };
  // Seals these blocks. Whether that was possible tells check().
  Status seal(const Layer& layer, const HackSealPlace* places);
  // Before the first layer: so many blocks will be sealed in each, at most one a row.
  void begin(int blocks) { sealing_ = blocks; }
  // After all layers: has the verdicts copied to the host.
  Status fetch_verdicts();
  // Once that is done, of the first `count` blocks of each layer: an error that names the layer
  // where a value was too large, or none.
  Status check(int count) const;

  // Prepares all heads of `rows` rows: before attend() of this layer.
  Status prepare(const std::byte* q, int rows, float scale);
  // Sealed pages alone, whose states go where `like` says: tables name sealed blocks.
  Status attend(const Layer& layer, const DecodeBatch& like, const std::int32_t* tables,
                const DecodeUnit* units, int count);
  // Sealed pages, then rows; states are of all rows of the pass: [rows][heads].
  Status attend(const Layer& layer, const PrefillBatch& like, const std::int32_t* tables,
                const PrefillUnit* units, int count);

 private:
  DeviceCodedPass(const DeviceCodes& codes, const ModelConfig& config, Accelerator& device)
      : codes_(codes), config_(config), device_(device) {}

  ChannelMix mix() const { return codes_.shape.mix ? channel_mix(codes_.shape.key_dim) : kNoMix; }
  // Verdicts of a block.
  int verdicts() const { return 2 * config_.kv_heads; }

  const DeviceCodes codes_;
  const ModelConfig config_;
  Accelerator& device_;
  DecodeShape decode_shape_{};
  Accelerator::Memory memory_;
  HackPrepared queries_{};
  // States of prefill attention.
  float* max_ = nullptr;
  float* sum_ = nullptr;
  float* out_ = nullptr;
  // Verdicts of sealing: [layers][blocks that are sealed][kv_heads][2].
  Accelerator::Memory beyond_, host_beyond_;
  int sealing_ = 0;  // blocks, in the pass that is under way
};

}  // namespace kvlane
