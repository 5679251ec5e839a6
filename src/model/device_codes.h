// Coded caches on a device: what of a pass is about sealed pages. Blocks that a pass completes are
// sealed there layer by layer, and attention computes on sealed pages as they are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "attention/hack_kind.h"
#include "attention/hack_page.h"
#include "attention/prefill_batch.h"
#include "format/head_widths.h"
#include "format/kv_window.h"
#include "model/accelerator.h"
#include "model/config.h"
#include "model/device_pass.h"

namespace kvlane {

// Formats that devices have kernels for: codes (attention/hack_decode_gpu.h), rounding to the
// nearest one;
struct DeviceCodes {
  HackKind kind;
  HackShape shape;
  KvWindow window;
};
// and narrow pages (attention/narrow_decode_gpu.h), in a basis of their own.
struct DeviceNarrow {
  KvWindow window;
  std::vector<HeadWidths> widths;  // [layers][kv_heads]
  std::vector<float> rotations;    // [layers][kv_heads][head_dim][head_dim], of K and its queries
};
using DeviceFormat = std::variant<DeviceCodes, DeviceNarrow>;

// Buffers for passes of up to `rows_max` rows, and the launches. Thread-compatible; does not
// outlive the device.
class DeviceCodedPass {
 public:
  // kInvalidArgument for a model that has no kernel.
  static Result<std::unique_ptr<DeviceCodedPass>> create(const DeviceFormat& format,
                                                         const ModelConfig& config,
                                                         Accelerator& device, int rows_max);
  virtual ~DeviceCodedPass() = default;

  // What passes are put together by. Points to what is here.
  virtual DevicePass::Coded reads() const = 0;
  // Of the layer's heads, for QkvRows; or null.
  virtual const float* rotations(int layer) const = 0;

  // One layer of a cache: rows and sealed slabs of block 0, and how far from there to block 1.
  struct Layer {
    int index;
    const std::byte* rows;
    std::size_t rows_block_bytes;
    std::byte* sealed;
    std::size_t sealed_block_bytes;
  };
  // Seals these blocks. Whether that was possible tells check().
  virtual Status seal(const Layer& layer, const HackSealPlace* places) = 0;
  // Before the first layer: so many blocks will be sealed in each of `layers` from `first` on, at
  // most one a row.
  void begin(int blocks, int first, int layers) {
    sealing_ = blocks;
    first_sealed_ = first;
    layers_sealed_ = layers;
  }
  // After all layers: has the verdicts copied to the host.
  Status fetch_verdicts();
  // Once that is done, of the first `count` blocks of each layer: an error that names the layer
  // where a value was no number or too large, or none.
  Status check(int count) const;

  // Prepares all heads of `rows` rows: before attention of this layer.
  virtual Status prepare(const std::byte* q, int rows, float scale) = 0;
  // Of the pass with this shape and these inputs: sealed pages alone, whose states go where `like`
  // says.
  virtual Status attend(const Layer& layer, const DecodeBatch& like, const DevicePassShape& shape,
                        const DevicePass::Inputs& inputs) = 0;
  // Sealed pages, then rows; `like` is of the sequences behind those that decode.
  virtual Status attend(const Layer& layer, const PrefillBatch& like, const DevicePassShape& shape,
                        const DevicePass::Inputs& inputs) = 0;

 protected:
  DeviceCodedPass(const ModelConfig& config, Accelerator& device)
      : config_(config), device_(device) {}

  Status allocate(int rows_max);
  // Of the layer's blocks that are sealed.
  std::uint32_t* beyond(int layer) const {
    const std::size_t first = std::size_t(layer - first_sealed_) * sealing_ * verdicts();
    return reinterpret_cast<std::uint32_t*>(beyond_.get()) + first;
  }
  // Rows behind sealed pages, whose states are those below.
  Status attend_rows(const PrefillBatch& like, const KvWindow& window, const DevicePassShape& shape,
                     const DevicePass::Inputs& inputs) {
    return device_.attend(like, SealedSeen{window, max_, sum_, out_}, inputs.prefill_units,
                          static_cast<std::size_t>(shape.prefill_units));
  }
  // Tables of the sequences behind those that decode.
  static const std::int32_t* prefill_tables(const DevicePassShape& shape,
                                            const DevicePass::Inputs& inputs) {
    return inputs.sealed_tables + std::size_t(shape.decoding) * shape.table_stride;
  }

  const ModelConfig config_;
  Accelerator& device_;
  // In the pass that is under way: blocks, the first layer of them, and layers.
  int sealing_ = 0;
  int first_sealed_ = 0;
  int layers_sealed_ = 0;
  // States of prefill attention: [rows][heads].
  float* max_ = nullptr;
  float* sum_ = nullptr;
  float* out_ = nullptr;

 private:
  // Verdicts of a block.
  int verdicts() const { return 2 * config_.kv_heads; }

  Accelerator::Memory states_;
  // Verdicts of sealing: [layers][blocks that are sealed][kv_heads][2].
  Accelerator::Memory beyond_, host_beyond_;
};

}  // namespace kvlane
