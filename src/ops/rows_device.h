// Rows of activations for kernels: embedding, norm and activation. Every value is computed as
// ops/rows.h does, operation by operation; only the sum of a norm has another order, which the
// length of the row alone decides: a thread's values, lanes by pairs, then warps in turn.
//
// A thread takes four consecutive values at a time, 16 bytes of F32 and 8 of BF16, and its
// neighbour the next four: a warp's accesses are whole sectors of memory in either type. Rows are
// independent of each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_float.h"
#include "ops/rows_batch.h"

namespace kvlane {

// Values of a thread, at a time.
inline constexpr int kRowValues = 4;

// A row that is normed is in its block's registers between the sum and the scaling: norm_parts()
// times four values a thread, and as few threads as that allows. So a row of 4096 values is on its
// way at once by 512 threads, alone too.
constexpr int norm_parts(int n) { return n <= 1024 ? 1 : n <= 4096 ? 2 : 4; }
constexpr int norm_threads(int n) {
  constexpr int kWarp = gpu::kWarpThreads;
  const int threads = (n - 1) / (kRowValues * norm_parts(n)) + 1;
  return (threads + kWarp - 1) / kWarp * kWarp;
}
// With so many parts.
constexpr int norm_threads_max(int parts) {
  return norm_threads(parts == 1 ? 1024 : parts == 2 ? 4096 : kNormValuesMax);
}

struct NormShared {
  float sums[norm_threads(kNormValuesMax) / gpu::kWarpThreads];  // of warps
};

namespace rows {

using namespace gpu;

template <int kParts>
using Values = Floats4[kParts];

// Which four values of a row the thread has in this part.
template <class Thread>
KVLANE_DEVICE int first_value(const Thread& t, int part) {
  return kRowValues * (part * t.threads() + t.index());
}

// Four values times a scale and a weight each.
KVLANE_DEVICE Floats4 scaled(const Floats4& x, float scale, const Floats4& weight) {
  Floats4 y;
  KVLANE_UNROLL
  for (int i = 0; i < kRowValues; ++i) y.x[i] = x.x[i] * scale * weight.x[i];
  return y;
}
KVLANE_DEVICE float sum_of_squares(const Floats4& x) {
  float sum = 0;
  KVLANE_UNROLL
  for (int i = 0; i < kRowValues; ++i) sum += times(x.x[i], x.x[i]);
  return sum;
}
// What a row with this sum of squares is multiplied with.
KVLANE_DEVICE float norm_scale(float squares, int n, float eps) {
  return 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
}

// Four values of a row of `n` a part; what is beyond them is 0.
template <int kParts, class Thread>
KVLANE_DEVICE void load_row(const Thread& t, const float* row, int n, Values<kParts>& x) {
  KVLANE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const int at = first_value(t, part);
    x[part] = at < n ? load_floats(row + at) : Floats4{};
  }
}

// The row plus that of `add`, which is not needed again; stores it, too. All loads come before the
// first store, behind which a compiler would not move them.
template <int kParts, class Thread>
KVLANE_DEVICE void add_to_row(const Thread& t, const float* add, int n, float* row,
                              Values<kParts>& x) {
  Values<kParts> y;
  KVLANE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const int at = first_value(t, part);
    y[part] = at < n ? load_floats_once(add + at) : Floats4{};
  }
  KVLANE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    KVLANE_UNROLL
    for (int i = 0; i < kRowValues; ++i) x[part].x[i] += y[part].x[i];
    const int at = first_value(t, part);
    if (at < n) store_floats(row + at, x[part]);
  }
}

// The same in all threads of the block. `shared` is not used before or after.
template <int kParts, class Thread>
KVLANE_DEVICE float row_sum_of_squares(Thread& t, const Values<kParts>& x, NormShared& shared) {
  float sum = 0;
  KVLANE_UNROLL
  for (int part = 0; part < kParts; ++part) sum += sum_of_squares(x[part]);
  sum = sum_of_lanes(t, sum);
  if (t.lane() == 0) shared.sums[t.warp()] = sum;
  t.sync_block();
  sum = 0;
  for (int warp = 0; warp < t.warps(); ++warp) sum += shared.sums[warp];
  return sum;
}

template <class Thread>
KVLANE_DEVICE void store_zero_row(const Thread& t, const NormRows& norm, int row) {
  if (norm.out == nullptr) return;
  for (int at = first_value(t, 0); at < norm.n; at += kRowValues * t.threads()) {
    store_bf16(norm.out + 2 * (std::size_t(row) * norm.n + at), {});
  }
}

}  // namespace rows

// By all threads of a block, for the values of row `row` that are its `part`: four a thread.
template <class Thread>
KVLANE_DEVICE void embed_values(Thread& t, const EmbedRows& embed, int row, int part) {
  const int at = rows::first_value(t, part);
  if (at >= embed.hidden) return;
  const std::int32_t token = embed.tokens[row];
  gpu::Floats4 values{};
  if (token >= 0) {
    values = gpu::load_bf16_once(embed.table + 2 * (std::size_t(token) * embed.hidden + at));
  }
  gpu::store_floats(embed.residual + std::size_t(row) * embed.hidden + at, values);
}

// By all threads of a block of norm_threads(norm.n), for row `row` of norm.rows. kParts is
// norm_parts(norm.n).
template <int kParts, class Thread>
KVLANE_DEVICE void norm_row(Thread& t, const NormRows& norm, int row, NormShared& shared) {
  using namespace rows;
  const int n = norm.n;
  const std::int32_t from = norm.take == nullptr ? row : norm.take[row];
  if (from < 0) return store_zero_row(t, norm, row);
  float* const residual = norm.residual + std::size_t(from) * n;
  Values<kParts> x, weight;
  load_row<kParts>(t, residual, n, x);
  if (norm.add != nullptr) {
    add_to_row<kParts>(t, norm.add + std::size_t(from) * n, n, residual, x);
  }
  if (norm.out == nullptr) return;
  // Here, and not where they are needed: they are on their way while the sum is made.
  load_row<kParts>(t, norm.weight, n, weight);
  const float scale = norm_scale(row_sum_of_squares<kParts>(t, x, shared), n, norm.eps);
  std::byte* const out = norm.out + 2 * std::size_t(row) * n;
  KVLANE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const int at = first_value(t, part);
    if (at < n) store_bf16(out + 2 * at, scaled(x[part], scale, weight[part]));
  }
}

// By all threads of a block, for the values of row `row` that are its `part`: four a thread.
template <class Thread>
KVLANE_DEVICE void silu_values(Thread& t, const SiluRows& silu, int row, int part) {
  using namespace gpu;
  const int at = rows::first_value(t, part);
  if (at >= silu.ffn) return;
  const float* const from = silu.gate_up + 2 * std::size_t(row) * silu.ffn + at;
  const Floats4 gate = load_floats_once(from), up = load_floats_once(from + silu.ffn);
  Floats4 y;
  KVLANE_UNROLL
  for (int i = 0; i < kRowValues; ++i) {
    y.x[i] = gate.x[i] / (1.0F + std::exp(-gate.x[i])) * up.x[i];
  }
  store_bf16(silu.out + 2 * (std::size_t(row) * silu.ffn + at), y);
}

}  // namespace kvlane
