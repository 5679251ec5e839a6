// One copy, then kernels of a forward pass.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_projection.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/bf16.h"
#include "model/alignment.h"
#include "ops/products_gpu.h"
#include "ops/rows_batch.h"

namespace kvlane {
Result<std::unique_ptr<DeviceProjection>> DeviceProjection::create(
    const DeviceModel& model, Accelerator& device, int rows_max,
    const std::optional<DeviceFormat>& format) {
  if (rows_max <= 0 || rows_max % kBlockTokens != 0) {
    return invalid_argument("hidden states are projected in parts of whole blocks, not of " +
                            std::to_string(rows_max) + " tokens");
  }
  std::unique_ptr<DeviceProjection> projection(new DeviceProjection(model, device, rows_max));
  KVLANE_TRY(projection->allocate(format));
  return projection;
}

Status DeviceProjection::allocate(const std::optional<DeviceFormat>& format) {
  const ModelConfig& c = model_.config();
  const std::size_t rows = rows_max_, blocks = rows / kBlockTokens;
  const auto append = [this](std::size_t bytes) {
    return std::exchange(parts_.bytes, parts_.bytes + device_aligned(bytes));
  };
  parts_.positions = append(rows * sizeof(std::int32_t));
  parts_.sequences = append(rows * sizeof(std::int32_t));
  parts_.table = append(blocks_for(model_.positions()) * sizeof(std::int32_t));
  parts_.seals = append(blocks * sizeof(HackSealPlace));
  parts_.rows = append(rows * c.hidden * sizeof(bf16));
  KVLANE_ASSIGN(rooms_, device_.allocate_host(2 * parts_.bytes));
  KVLANE_ASSIGN(copy_, device_.allocate(parts_.bytes));
  KVLANE_ASSIGN(product_, device_.allocate(rows * 2 * c.kv_heads * c.head_dim * sizeof(float)));
  if (!format) return {};
  KVLANE_ASSIGN(slabs_, device_.allocate(blocks * c.kv_shape().slab_bytes()));
  KVLANE_ASSIGN(coded_, DeviceCodedPass::create(*format, c, device_, static_cast<int>(blocks)));
  return {};
}

Status DeviceProjection::give(const ProjectedPiece& piece) {
  const int end = piece.first + piece.count;
  if (piece.first < 0 || piece.first % kBlockTokens != 0 || piece.count <= 0 ||
      piece.count % kBlockTokens != 0 || piece.count > rows_max_ || end > model_.positions() ||
      piece.layer < 0 || piece.layer >= model_.config().layers) {
    return internal_error("there is nothing to project in tokens " + std::to_string(piece.first) +
                          " to " + std::to_string(end) + " in layer " +
                          std::to_string(piece.layer));
  }
  describe(piece);
  Status given = launch(piece);
  if (!given.ok()) {
    (void)device_.finish();  // what is in line reads the room
    return given;
  }
  room_ = 1 - room_;
  moving_ = piece.count / kBlockTokens;
  return {};
}

// Before the rows in the room.
void DeviceProjection::describe(const ProjectedPiece& piece) const {
  auto* const positions = host_part<std::int32_t>(parts_.positions);
  std::iota(positions, positions + piece.count, piece.first);
  std::fill_n(host_part<std::int32_t>(parts_.sequences), piece.count, 0);
  auto* const table = host_part<std::int32_t>(parts_.table);
  auto* const seals = host_part<HackSealPlace>(parts_.seals);
  const int first = piece.first / kBlockTokens, blocks = piece.count / kBlockTokens;
  std::fill_n(table, first, 0);  // nobody reads these
  for (int i = 0; i < blocks; ++i) {
    const BlockId id = piece.table->id(first + i);
    table[first + i] = coded_ ? i : id;
    seals[i] = {i, id};
  }
}

Status DeviceProjection::launch(const ProjectedPiece& piece) {
  const ModelConfig& c = model_.config();
  const std::size_t row_bytes = c.hidden * sizeof(bf16);
  KVLANE_TRY(
      device_.copy(copy_.get(), host_part<std::byte>(0), parts_.rows + piece.count * row_bytes));
  // Of the stacked weights what is behind those of Q.
  KVLANE_TRY(device_.multiply(
      {.weights = model_.layers()[piece.layer].qkv + std::size_t(c.heads) * c.head_dim * row_bytes,
       .x = part<std::byte>(parts_.rows),
       .y = reinterpret_cast<float*>(product_.get()),
       .rows = piece.count,
       .n = 2 * c.kv_heads * c.head_dim,
       .k = c.hidden,
       .add = false}));
  KVLANE_TRY(write_rows(piece));
  return coded_ ? seal(piece) : Status();
}

Status DeviceProjection::write_rows(const ProjectedPiece& piece) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layers()[piece.layer];
  const BlockPool& pool = piece.table->pool();
  return device_.write_qkv({.product = reinterpret_cast<const float*>(product_.get()),
                            .q_norm = layer.q_norm,
                            .k_norm = layer.k_norm,
                            .eps = c.norm_eps,
                            .angles = model_.angles(),
                            .positions = part<std::int32_t>(parts_.positions),
                            .sequences = part<std::int32_t>(parts_.sequences),
                            .tables = part<std::int32_t>(parts_.table),
                            .table_stride = blocks_for(model_.positions()),
                            .rows = piece.count,
                            .heads = 0,
                            .kv_heads = c.kv_heads,
                            .head_dim = c.head_dim,
                            .q = nullptr,
                            .slabs = coded_ ? slabs_.get() : pool.slab_memory(0, piece.layer),
                            .block_bytes = coded_ ? c.kv_shape().slab_bytes() : pool.block_bytes(),
                            .rotations = coded_ ? coded_->rotations(piece.layer) : nullptr});
}

Status DeviceProjection::seal(const ProjectedPiece& piece) {
  const BlockPool& pool = piece.table->pool();
  coded_->begin(piece.count / kBlockTokens, piece.layer, 1);
  KVLANE_TRY(coded_->seal({.index = piece.layer,
                           .rows = slabs_.get(),
                           .rows_block_bytes = model_.config().kv_shape().slab_bytes(),
                           .sealed = pool.slab_memory(0, piece.layer),
                           .sealed_block_bytes = pool.block_bytes()},
                          part<HackSealPlace>(parts_.seals)));
  return coded_->fetch_verdicts();
}

Status DeviceProjection::finish() {
  const int blocks = std::exchange(moving_, 0);
  if (blocks == 0) return {};
  KVLANE_TRY(device_.finish());
  return coded_ ? coded_->check(blocks) : Status();
}

}  // namespace kvlane
