// Prepared queries, and launches in terms of those for rows.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_hack.h"

#include "attention/decode_batch.h"
#include "attention/hack_decode_gpu.h"
#include "attention/hack_prefill_gpu.h"
#include "attention/hack_prepare_batch.h"
#include "model/alignment.h"
#include "quant/hack_seal_batch.h"

namespace kvlane {
namespace {

class HackPass final : public DeviceCodedPass {
 public:
  HackPass(const DeviceCodes& codes, const ModelConfig& config, Accelerator& device)
      : DeviceCodedPass(config, device), codes_(codes) {}

  Status open(int rows_max);

  DevicePass::Coded reads() const override { return {codes_.window, decode_shape_}; }
  const float* rotations(int /*layer*/) const override { return nullptr; }
  Status seal(const Layer& layer, const HackSealPlace* places) override;
  Status prepare(const std::byte* q, int rows, float scale) override;
  Status attend(const Layer& layer, const DecodeBatch& like, const DevicePassShape& shape,
                const DevicePass::Inputs& inputs) override;
  Status attend(const Layer& layer, const PrefillBatch& like, const DevicePassShape& shape,
                const DevicePass::Inputs& inputs) override;

 private:
  ChannelMix mix() const { return codes_.shape.mix ? channel_mix(codes_.shape.key_dim) : kNoMix; }

  const DeviceCodes codes_;
  DecodeShape decode_shape_{};
  Accelerator::Memory memory_;
  HackPrepared queries_{};
};

Status HackPass::open(int rows_max) {
  const int d = config_.head_dim;
  KVLANE_ASSIGN(decode_shape_, hack_decode_shape(codes_.kind, config_.heads, config_.kv_heads, d,
                                                 device_.multiprocessors()));
  KVLANE_TRY(hack_prefill_shape(codes_.kind, config_.heads, config_.kv_heads, d).status());
  KVLANE_TRY(allocate(rows_max));
  const std::size_t rows = std::size_t(rows_max) * config_.heads;
  const std::size_t sizes[] = {rows * d, 2 * rows * d, rows * sizeof(float),
                               rows * kHackTerms * sizeof(HackTerm)};
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += device_aligned(size);
  KVLANE_ASSIGN(memory_, device_.allocate(total));
  std::byte* parts[std::size(sizes)];
  std::byte* at = memory_.get();
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    parts[i] = at;
    at += device_aligned(sizes[i]);
  }
  queries_ = {parts[0], parts[1], reinterpret_cast<float*>(parts[2]),
              reinterpret_cast<HackTerm*>(parts[3])};
  return {};
}

Status HackPass::seal(const Layer& layer, const HackSealPlace* places) {
  if (sealing_ == 0) return {};
  return device_.seal(HackSealBatch{.places = places,
                                    .rows = layer.rows,
                                    .rows_block_bytes = layer.rows_block_bytes,
                                    .slabs = layer.sealed,
                                    .block_bytes = layer.sealed_block_bytes,
                                    .kv_heads = config_.kv_heads,
                                    .head_dim = config_.head_dim,
                                    .k = codes_.shape.k,
                                    .v = codes_.shape.v,
                                    .layout = codes_.shape.layout,
                                    .mix = mix(),
                                    .beyond = beyond(layer.index)},
                      static_cast<std::size_t>(sealing_));
}

Status HackPass::prepare(const std::byte* q, int rows, float scale) {
  return device_.prepare({.q = q,
                          .rows = rows * config_.heads,
                          .head_dim = config_.head_dim,
                          .scale = scale,
                          .mix = mix(),
                          .middle = hack::middle_code(codes_.shape.k),
                          .partition = codes_.kind.partition,
                          .to = queries_});
}

Status HackPass::attend(const Layer& layer, const DecodeBatch& like, const DevicePassShape& shape,
                        const DevicePass::Inputs& inputs) {
  if (shape.sealed_units == 0) return {};
  const HackDecodeBatch batch{.tables = inputs.sealed_tables,
                              .table_stride = like.table_stride,
                              .heads = like.heads,
                              .kv_heads = like.kv_heads,
                              .head_dim = like.head_dim,
                              .slabs = layer.sealed,
                              .block_bytes = layer.sealed_block_bytes,
                              .layout = codes_.shape.layout,
                              .queries = queries_,
                              .mix = mix(),
                              .max = like.max,
                              .sum = like.sum,
                              .out = like.out};
  return device_.attend(codes_.kind, batch, inputs.sealed_units,
                        static_cast<std::size_t>(shape.sealed_units));
}

Status HackPass::attend(const Layer& layer, const PrefillBatch& like, const DevicePassShape& shape,
                        const DevicePass::Inputs& inputs) {
  const HackPrefillBatch batch{.tables = prefill_tables(shape, inputs),
                               .table_stride = like.table_stride,
                               .heads = like.heads,
                               .kv_heads = like.kv_heads,
                               .head_dim = like.head_dim,
                               .key_bits = codes_.kind.key_bits,
                               .value_bits = codes_.kind.value_bits,
                               .slabs = layer.sealed,
                               .block_bytes = layer.sealed_block_bytes,
                               .layout = codes_.shape.layout,
                               .window = codes_.window,
                               .queries = queries_,
                               .mix = mix(),
                               .max = max_,
                               .sum = sum_,
                               .out = out_};
  KVLANE_TRY(device_.attend(codes_.kind, batch, inputs.prefill_units,
                            static_cast<std::size_t>(shape.prefill_units)));
  return attend_rows(like, codes_.window, shape, inputs);
}

}  // namespace

Result<std::unique_ptr<DeviceCodedPass>> create_hack_pass(const DeviceCodes& codes,
                                                          const ModelConfig& config,
                                                          Accelerator& device, int rows_max) {
  auto pass = std::make_unique<HackPass>(codes, config, device);
  KVLANE_TRY(pass->open(rows_max));
  return std::unique_ptr<DeviceCodedPass>(std::move(pass));
}

}  // namespace kvlane
