// Buffers of coded passes, and launches in terms of those for rows.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_codes.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvlane {
namespace {

constexpr std::size_t kAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Result<std::unique_ptr<DeviceCodedPass>> DeviceCodedPass::create(const DeviceCodes& codes,
                                                                 const ModelConfig& config,
                                                                 Accelerator& device,
                                                                 int rows_max) {
  std::unique_ptr<DeviceCodedPass> pass(new DeviceCodedPass(codes, config, device));
  const int d = config.head_dim;
  KVLANE_ASSIGN(pass->decode_shape_, hack_decode_shape(codes.kind, config.heads, config.kv_heads, d,
                                                       device.multiprocessors()));
  KVLANE_TRY(hack_prefill_shape(codes.kind, config.heads, config.kv_heads, d).status());
  const std::size_t rows = std::size_t(rows_max) * config.heads;
  const std::size_t sizes[] = {rows * d,
                               2 * rows * d,
                               rows * sizeof(float),
                               rows * kHackTerms * sizeof(HackTerm),
                               rows * sizeof(float),
                               rows * sizeof(float),
                               rows * d * sizeof(float)};
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += aligned(size);
  KVLANE_ASSIGN(pass->memory_, device.allocate(total));
  std::byte* parts[std::size(sizes)];
  std::byte* at = pass->memory_.get();
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    parts[i] = at;
    at += aligned(sizes[i]);
  }
  pass->queries_ = {parts[0], parts[1], reinterpret_cast<float*>(parts[2]),
                    reinterpret_cast<HackTerm*>(parts[3])};
  pass->max_ = reinterpret_cast<float*>(parts[4]);
  pass->sum_ = reinterpret_cast<float*>(parts[5]);
  pass->out_ = reinterpret_cast<float*>(parts[6]);
  const std::size_t verdict_bytes =
      std::size_t(config.layers) * rows_max * pass->verdicts() * sizeof(std::uint32_t);
  KVLANE_ASSIGN(pass->beyond_, device.allocate(verdict_bytes));
  KVLANE_ASSIGN(pass->host_beyond_, device.allocate_host(verdict_bytes));
  return pass;
}

Status DeviceCodedPass::seal(const Layer& layer, const HackSealPlace* places) {
  if (sealing_ == 0) return {};
  const std::size_t first = std::size_t(layer.index) * sealing_ * verdicts();
  return device_.seal({.places = places,
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
                       .beyond = reinterpret_cast<std::uint32_t*>(beyond_.get()) + first},
                      static_cast<std::size_t>(sealing_));
}

Status DeviceCodedPass::fetch_verdicts() {
  if (sealing_ == 0) return {};
  return device_.copy(host_beyond_.get(), beyond_.get(),
                      std::size_t(config_.layers) * sealing_ * verdicts() * sizeof(std::uint32_t));
}

Status DeviceCodedPass::check(int count) const {
  const auto* const all = reinterpret_cast<const std::uint32_t*>(host_beyond_.get());
  for (int layer = 0; layer < config_.layers && count > 0; ++layer) {
    const std::uint32_t* const first = all + std::size_t(layer) * sealing_ * verdicts();
    if (std::any_of(first, first + std::size_t(count) * verdicts(),
                    [](std::uint32_t beyond) { return beyond != 0; })) {
      return invalid_argument("K or V of layer " + std::to_string(layer) +
                              " has a value that is not finite or too large to be sealed");
    }
  }
  return {};
}

Status DeviceCodedPass::prepare(const std::byte* q, int rows, float scale) {
  return device_.prepare({.q = q,
                          .rows = rows * config_.heads,
                          .head_dim = config_.head_dim,
                          .scale = scale,
                          .mix = mix(),
                          .middle = hack::middle_code(codes_.shape.k),
                          .partition = codes_.kind.partition,
                          .to = queries_});
}

Status DeviceCodedPass::attend(const Layer& layer, const DecodeBatch& like,
                               const std::int32_t* tables, const DecodeUnit* units, int count) {
  if (count == 0) return {};
  const HackDecodeBatch batch{.tables = tables,
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
  return device_.attend(codes_.kind, batch, units, static_cast<std::size_t>(count));
}

Status DeviceCodedPass::attend(const Layer& layer, const PrefillBatch& like,
                               const std::int32_t* tables, const PrefillUnit* units, int count) {
  const HackPrefillBatch batch{.tables = tables,
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
  KVLANE_TRY(device_.attend(codes_.kind, batch, units, static_cast<std::size_t>(count)));
  return device_.attend(like, SealedSeen{codes_.window, max_, sum_, out_}, units,
                        static_cast<std::size_t>(count));
}

}  // namespace kvlane
