// What stands between the product that gives Q, K and V and attention, where Q and K are turned
// into another basis behind rotary embedding (format `zack`, spec/slab_zack.md): for kernels, the
// same as ops/qkv_device.h and a product with the KV head's matrix in one.
//
// A block of threads takes 32 heads that have one matrix: of a row the query heads of a KV head's
// group, then its K, then those of the next row. Lanes embed them as ops/qkv_device.h does, and
// leave them in shared memory in F32; then a thread has four heads and four columns, and goes over
// the matrix row by row, so a value is the sum over the rows in their order, each product and sum
// rounded once. V is stored on the way.
//
// Bytes of a head and row: 4 head_dim of the product, 2 head_dim written, and of the matrix
// 4 head_dim^2 / 32 from the second-level cache, where those of a layer lie (512 KB with 8 KV heads
// of 128). Operations: 2 head_dim^2, in F32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/qkv_device.h"

namespace kvlane {

inline constexpr int kTurnedHeads = 32;  // of a block of threads
inline constexpr int kTurnedThreads = 256;

struct TurnedHeads {
  // Columns behind head_dim keep rows in different banks.
  alignas(16) float x[kTurnedHeads][kQkvHeadDimMax + kRowValues];
};

namespace rows {

// A row's head of those that have one matrix.
struct TurnedHead {
  std::int32_t row, head;  // of all heads of the product
  std::int32_t position;   // negative where nothing is
  bool is_key, there;
};
KVLANE_DEVICE TurnedHead turned_head(const QkvRows& qkv, int kv_head, int index) {
  const int group = qkv.heads / qkv.kv_heads;
  TurnedHead head{index / (group + 1), 0, -1, index % (group + 1) == group, false};
  head.there = head.row < qkv.rows;
  if (!head.there) return head;
  head.head = head.is_key ? qkv.heads + kv_head : kv_head * group + index % (group + 1);
  head.position = qkv.positions[head.row];
  return head;
}

// Heads `first` ... behind their embedding to shared memory, zeros where nothing is, and V to its
// page. By all threads of the block.
template <class Thread>
KVLANE_DEVICE void embed_heads(Thread& t, const QkvRows& qkv, int kv_head, int first,
                               int lanes_log2, TurnedHeads& shared) {
  const int d = qkv.head_dim, half = d / 2, heads = qkv.heads + 2 * qkv.kv_heads;
  const int at = kRowValues * (t.index() & ((1 << lanes_log2) - 1));
  KVLANE_NO_UNROLL
  for (int begin = 0; begin < kTurnedHeads; begin += t.threads() >> lanes_log2) {
    const int i = begin + (t.index() >> lanes_log2);
    const TurnedHead head = turned_head(qkv, kv_head, first + i);
    const bool inside = i < kTurnedHeads && at < half, there = inside && head.position >= 0;
    const float* const row = qkv.product + std::size_t(head.row) * heads * d + at;
    Halves x{}, value{};
    if (there) {
      const float* const from = row + head.head * d;
      x = {load_floats_once(from), load_floats_once(from + half)};
    }
    if (there && head.is_key) {
      const float* const from = row + (head.head + qkv.kv_heads) * d;
      value = {load_floats_once(from), load_floats_once(from + half)};
    }
    norm_head(t, qkv, head.head, at, there, lanes_log2, x);
    if (there) rotate(qkv, head.position, at, x);
    if (there && head.is_key) {
      store_halves(page_row(qkv, head.row, head.position, 2 * kv_head + 1) + 2 * at, half, value);
    }
    if (!inside) continue;
    store_floats(shared.x[i] + at, x.low);
    store_floats(shared.x[i] + half + at, x.high);
  }
}

// out[j] += the columns of four values of head j and the four rows of the matrix that meet them.
KVLANE_DEVICE void add_products(const Floats4 (&x)[4], const Floats4 (&matrix)[4],
                                Floats4 (&out)[4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) {
      KVLANE_UNROLL
      for (int c = 0; c < 4; ++c) {
        out[j].x[c] = fused(x[j].x[i], matrix[i].x[c], out[j].x[c]);
      }
    }
  }
}

}  // namespace rows

// By all threads of a block: the heads `first` ... first + 31 of `kv_head`, of which there are
// rows (heads / kv_heads + 1). lanes_log2 is qkv_lanes_log2(head_dim).
template <class Thread>
KVLANE_DEVICE void write_turned_heads(Thread& t, const QkvRows& qkv, int kv_head, int first,
                                      int lanes_log2, TurnedHeads& shared) {
  using namespace rows;
  embed_heads(t, qkv, kv_head, first, lanes_log2, shared);
  t.sync_block();
  const int d = qkv.head_dim, columns = d / 4;
  const float* const rotation = qkv.rotations + std::size_t(kv_head) * d * d;
  KVLANE_NO_UNROLL
  for (int i = t.index(); i < kTurnedHeads / 4 * columns; i += t.threads()) {
    const int four = 4 * (i / columns), column = 4 * (i % columns);
    if (!turned_head(qkv, kv_head, first + four).there) break;
    Floats4 out[4] = {};
    const float* matrix_row = rotation + column;
    for (int at = 0; at < d; at += 4, matrix_row += 4 * d) {
      Floats4 x[4], matrix[4];
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) matrix[j] = load_floats(matrix_row + j * d);
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) x[j] = load_floats(shared.x[four + j] + at);
      add_products(x, matrix, out);
    }
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const TurnedHead head = turned_head(qkv, kv_head, first + four + j);
      if (!head.there || (head.is_key && head.position < 0)) continue;
      std::byte* const to = head.is_key ? page_row(qkv, head.row, head.position, 2 * kv_head)
                                        : query_row(qkv, head.row, head.head);
      store_bf16(to + 2 * column, out[j]);
    }
  }
}

}  // namespace kvlane
