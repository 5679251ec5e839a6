// Rotations and places of pages in memory of the device, and launches in terms of those for rows.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_narrow.h"

#include <string>

#include "attention/decode_batch.h"
#include "attention/narrow_decode_gpu.h"
#include "attention/narrow_prefill_gpu.h"
#include "quant/zack_seal_batch.h"

namespace kvlane {
namespace {

class NarrowPass final : public DeviceCodedPass {
 public:
  NarrowPass(const DeviceNarrow& narrow, const ModelConfig& config, Accelerator& device)
      : DeviceCodedPass(config, device),
        window_(narrow.window),
        layers_{config.kv_heads, narrow.widths, {}} {}

  Status open(const DeviceNarrow& narrow, int rows_max);

  DevicePass::Coded reads() const override { return {window_, {}, &layers_}; }
  const float* rotations(int layer) const override {
    const std::size_t d = config_.head_dim;
    return reinterpret_cast<const float*>(rotations_.get()) + layer * config_.kv_heads * d * d;
  }
  Status seal(const Layer& layer, const HackSealPlace* places) override;
  Status prepare(const std::byte* /*q*/, int /*rows*/, float /*scale*/) override { return {}; }
  Status attend(const Layer& layer, const DecodeBatch& like, const DevicePassShape& shape,
                const DevicePass::Inputs& inputs) override;
  Status attend(const Layer& layer, const PrefillBatch& like, const DevicePassShape& shape,
                const DevicePass::Inputs& inputs) override;

 private:
  // Copies to memory of its own there, and waits.
  template <class T>
  Result<Accelerator::Memory> on_device(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    KVLANE_ASSIGN(Accelerator::Memory memory, device_.allocate(bytes));
    KVLANE_TRY(
        device_.copy(memory.get(), reinterpret_cast<const std::byte*>(values.data()), bytes));
    KVLANE_TRY(device_.finish());
    return memory;
  }
  const NarrowHead* heads(int layer) const {
    return reinterpret_cast<const NarrowHead*>(heads_.get()) + layer * config_.kv_heads;
  }
  int width_max(int layer) const { return narrow_width_max(layers_.of_layer(layer)); }

  const KvWindow window_;
  DevicePass::NarrowLayers layers_;
  Accelerator::Memory rotations_, heads_;
};

Status NarrowPass::open(const DeviceNarrow& narrow, int rows_max) {
  const std::size_t d = config_.head_dim, all = std::size_t(config_.layers) * config_.kv_heads;
  if (narrow.widths.size() != all || narrow.rotations.size() != all * d * d) {
    return invalid_argument("the KV format is not of this model: it has " +
                            std::to_string(narrow.widths.size()) + " heads in place of " +
                            std::to_string(all));
  }
  std::vector<NarrowHead> heads;
  for (int layer = 0; layer < config_.layers; ++layer) {
    KVLANE_ASSIGN(const NarrowDecodeShape shape,
                  narrow_decode_shape(config_.heads, layers_.of_layer(layer), config_.head_dim,
                                      device_.multiprocessors()));
    layers_.machines.push_back(shape.machines);
    std::int32_t page = 0;
    for (const HeadWidths& head : layers_.of_layer(layer)) {
      heads.push_back({page, head.k, head.v});
      page += 2 * kBlockTokens * (head.k + head.v);
    }
  }
  KVLANE_TRY(allocate(rows_max));
  KVLANE_ASSIGN(rotations_, on_device(narrow.rotations));
  KVLANE_ASSIGN(heads_, on_device(heads));
  return {};
}

Status NarrowPass::seal(const Layer& layer, const HackSealPlace* places) {
  if (sealing_ == 0) return {};
  return device_.seal(ZackSealBatch{.places = places,
                                    .rows = layer.rows,
                                    .rows_block_bytes = layer.rows_block_bytes,
                                    .slabs = layer.sealed,
                                    .block_bytes = layer.sealed_block_bytes,
                                    .kv_heads = config_.kv_heads,
                                    .head_dim = config_.head_dim,
                                    .heads = heads(layer.index),
                                    .beyond = beyond(layer.index)},
                      static_cast<std::size_t>(sealing_));
}

Status NarrowPass::attend(const Layer& layer, const DecodeBatch& like, const DevicePassShape& shape,
                          const DevicePass::Inputs& inputs) {
  if (shape.narrow_pieces == 0) return {};
  const NarrowDecodeBatch batch{.tables = inputs.sealed_tables,
                                .table_stride = like.table_stride,
                                .heads = like.heads,
                                .kv_heads = like.kv_heads,
                                .head_dim = like.head_dim,
                                .slabs = layer.sealed,
                                .block_bytes = layer.sealed_block_bytes,
                                .q = like.q,
                                .scale = like.scale,
                                .pieces = inputs.narrow_pieces,
                                .first = inputs.narrow_first + layers_.first_at(layer.index),
                                .max = like.max,
                                .sum = like.sum,
                                .out = like.out};
  return device_.attend(batch, width_max(layer.index), layers_.machines[layer.index]);
}

Status NarrowPass::attend(const Layer& layer, const PrefillBatch& like,
                          const DevicePassShape& shape, const DevicePass::Inputs& inputs) {
  const NarrowPrefillBatch batch{.tables = prefill_tables(shape, inputs),
                                 .table_stride = like.table_stride,
                                 .heads = like.heads,
                                 .kv_heads = like.kv_heads,
                                 .head_dim = like.head_dim,
                                 .slabs = layer.sealed,
                                 .block_bytes = layer.sealed_block_bytes,
                                 .pages = heads(layer.index),
                                 .window = window_,
                                 .q = like.q,
                                 .scale = like.scale,
                                 .max = max_,
                                 .sum = sum_,
                                 .out = out_};
  KVLANE_TRY(device_.attend(batch, width_max(layer.index), inputs.prefill_units,
                            static_cast<std::size_t>(shape.prefill_units)));
  return attend_rows(like, window_, shape, inputs);
}

}  // namespace

Result<std::unique_ptr<DeviceCodedPass>> create_narrow_pass(const DeviceNarrow& narrow,
                                                            const ModelConfig& config,
                                                            Accelerator& device, int rows_max) {
  auto pass = std::make_unique<NarrowPass>(narrow, config, device);
  KVLANE_TRY(pass->open(narrow, rows_max));
  return std::unique_ptr<DeviceCodedPass>(std::move(pass));
}

}  // namespace kvlane
