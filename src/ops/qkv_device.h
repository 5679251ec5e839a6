// What stands between the product that gives Q, K and V and attention, for kernels: norms of Q and
// K heads (where a model has them), rotary embedding, and rounding to where attention reads them.
//
// A head's pairs (i, i + head_dim / 2) are with one lane: four consecutive values of either half,
// so a head takes head_dim / 8 lanes, in as many as the next power of two has. A warp has 1 to 32
// heads. Without norms every bit is what ops/rows.h gives; the sum of a norm has an order of its
// own: a lane's values, then lanes by pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "format/shape.h"
#include "ops/rows_device.h"

namespace kvlane {

static_assert(kQkvHeadDimMax == 8 * gpu::kWarpThreads);

// The logarithm to base 2 of the lanes that a head takes.
constexpr int qkv_lanes_log2(int head_dim) {
  int log2 = 0;
  while (8 << log2 < head_dim) ++log2;
  return log2;
}

namespace rows {

// Four values of either half of a head.
struct Halves {
  Floats4 low, high;
};

KVLANE_DEVICE void rotate(const QkvRows& qkv, int position, int at, Halves& x) {
  const int half = qkv.head_dim / 2;
  const float* const angles = qkv.angles + std::size_t(position) * qkv.head_dim + at;
  const Floats4 cos = load_floats(angles), sin = load_floats(angles + half);
  KVLANE_UNROLL
  for (int i = 0; i < kRowValues; ++i) {
    const float low = x.low.x[i], high = x.high.x[i];
    x.low.x[i] = times(low, cos.x[i]) - times(high, sin.x[i]);
    x.high.x[i] = times(high, cos.x[i]) + times(low, sin.x[i]);
  }
}

// Of a model with norms of heads; those of V have none. By all lanes of the warp, which add up
// whatever they have.
template <class Thread>
KVLANE_DEVICE void norm_head(Thread& t, const QkvRows& qkv, int head, int at, bool there,
                             int lanes_log2, Halves& x) {
  if (qkv.q_norm == nullptr) return;
  const int d = qkv.head_dim;
  const float squares =
      sum_of_lanes(t, sum_of_squares(x.low) + sum_of_squares(x.high), 1 << lanes_log2);
  if (!there || head >= qkv.heads + qkv.kv_heads) return;
  const float scale = norm_scale(squares, d, qkv.eps);
  const float* const weight = (head < qkv.heads ? qkv.q_norm : qkv.k_norm) + at;
  x = {scaled(x.low, scale, load_floats(weight)),
       scaled(x.high, scale, load_floats(weight + d / 2))};
}

KVLANE_DEVICE std::byte* query_row(const QkvRows& qkv, int row, int head) {
  return qkv.q + 2 * (std::size_t(row) * qkv.heads + head) * qkv.head_dim;
}

// Where this row's K or V of a KV head lies: in plane 2 kv_head of its slab, or in the next one.
KVLANE_DEVICE std::byte* page_row(const QkvRows& qkv, int row, int position, int plane) {
  const std::int32_t block =
      qkv.tables[std::size_t(qkv.sequences[row]) * qkv.table_stride + position / kBlockTokens];
  const std::size_t at = std::size_t(plane) * kBlockTokens + position % kBlockTokens;
  return qkv.slabs + block * qkv.block_bytes + 2 * at * qkv.head_dim;
}

KVLANE_DEVICE void store_halves(std::byte* at, int half, const Halves& x) {
  store_bf16(at, x.low);
  store_bf16(at + 2 * half, x.high);
}

}  // namespace rows

// By all lanes of a block: each group of 2^lanes_log2 = 2^qkv_lanes_log2(head_dim) of them has a
// head of row `row`, from `first_head` on; there may be fewer heads than that.
template <class Thread>
KVLANE_DEVICE void write_heads(Thread& t, const QkvRows& qkv, int row, int first_head,
                               int lanes_log2) {
  using namespace rows;
  const int d = qkv.head_dim, half = d / 2;
  const int key_begin = qkv.heads, value_begin = key_begin + qkv.kv_heads;
  const int heads = value_begin + qkv.kv_heads;
  const int head = first_head + (t.index() >> lanes_log2);
  const int at = kRowValues * (t.index() & ((1 << lanes_log2) - 1));
  const bool there = head < heads && at < half;
  Halves x{};
  if (there) {
    const float* const from = qkv.product + (std::size_t(row) * heads + head) * d + at;
    x = {load_floats_once(from), load_floats_once(from + half)};
  }
  const std::int32_t position = qkv.positions[row];
  if (position < 0) {
    if (there && head < key_begin) store_halves(query_row(qkv, row, head) + 2 * at, half, {});
    return;
  }
  norm_head(t, qkv, head, at, there, lanes_log2, x);
  if (!there) return;
  if (head < value_begin) rotate(qkv, position, at, x);
  if (head < key_begin) return store_halves(query_row(qkv, row, head) + 2 * at, half, x);
  const bool is_value = head >= value_begin;
  const int kv_head = head - (is_value ? value_begin : key_begin);
  store_halves(page_row(qkv, row, position, 2 * kv_head + is_value) + 2 * at, half, x);
}

}  // namespace kvlane
