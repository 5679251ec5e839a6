// All operations of warpgroups (gpu/hopper_thread.h) in one block of threads, for tests: two
// warpgroups multiply rows of bytes and of binary16 that tests choose.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_float.h"

namespace kvlane::gpu {

inline constexpr int kWarpgroupTestThreads = 2 * kWarpgroupThreads;

// Rows of A and of the results are those of the first warpgroup, then of the second; B is the same.
// Everything begins at multiples of 16 bytes.
struct WarpgroupTask {
  static constexpr int kRows = 2 * 64;
  static constexpr int kByteColumns = 64;
  const std::byte *bytes_a, *bytes_b;    // [kRows][128], [kByteColumns][128]
  std::int32_t* bytes_d;                 // [kRows][kByteColumns]
  const std::byte *halves_a, *halves_b;  // [kRows][64], [columns][64], binary16
  float* halves_d;                       // [kRows][columns]; is added to
};

template <int kColumns>
struct WarpgroupShared {
  alignas(1024) Words4 a[WarpgroupTask::kRows][8];
  alignas(1024) Words4 bytes[WarpgroupTask::kByteColumns][8];
  alignas(1024) Words4 halves[kColumns][8];
};

template <class Thread>
KVLANE_DEVICE void share_rows(Thread& t, const std::byte* from, int rows, Words4* to) {
  for (int i = t.index(); i < 8 * rows; i += t.threads()) {
    const int row = i / 8, piece = i % 8;
    to[8 * row + (piece ^ row % 8)] = load_once(from + sizeof(Words4) * i);
  }
}

// By all threads of a block of kWarpgroupTestThreads. kColumns is 72 or 136.
template <int kColumns, class Thread>
KVLANE_DEVICE void multiply_rows(Thread& t, const WarpgroupTask& task,
                                 WarpgroupShared<kColumns>& shared) {
  share_rows(t, task.bytes_a, task.kRows, shared.a[0]);
  share_rows(t, task.bytes_b, task.kByteColumns, shared.bytes[0]);
  share_rows(t, task.halves_b, kColumns, shared.halves[0]);
  t.publish();
  const int row = 16 * t.warp() + t.lane() / 4, column = t.lane() % 4 * 2;
  std::int32_t bytes[WarpgroupTask::kByteColumns / 2];
  float halves[kColumns / 2];
  std::uint32_t a[4][4];
  KVLANE_UNROLL
  for (int i = 0; i < kColumns / 2; ++i) {
    halves[i] = task.halves_d[(row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + column + i % 2];
  }
  KVLANE_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int at = (row + i % 2 * 8) * 64 + i / 4 * 16 + i / 2 % 2 * 8 + column;
    a[i / 4][i % 4] = load_aligned_half(task.halves_a + 2 * at) |
                      load_aligned_half(task.halves_a + 2 * at + 2) << 16;
  }
  t.sync_block();
  const Words4& own = shared.a[64 * (t.warp() / 4)][0];
  t.begin_products();
  t.template multiply_s8s8<false>(bytes, own, shared.bytes[0][0], 0);
  KVLANE_UNROLL
  for (int step = 1; step < 4; ++step) {
    t.template multiply_s8s8<true>(bytes, own, shared.bytes[0][0], step);
  }
  t.close_products();
  KVLANE_UNROLL
  for (int step = 0; step < 4; ++step) {
    t.multiply_fp16(halves, a[step], shared.halves[0][0], step);
  }
  t.close_products();
  t.template wait_products_but<1>(bytes);
  KVLANE_UNROLL
  for (int i = 0; i < task.kByteColumns / 2; ++i) {
    const int at = (row + i / 2 % 2 * 8) * task.kByteColumns + i / 4 * 8 + column + i % 2;
    task.bytes_d[at] = bytes[i];
  }
  t.template wait_products_but<0>(halves);
  KVLANE_UNROLL
  for (int i = 0; i < kColumns / 2; ++i) {
    task.halves_d[(row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + column + i % 2] = halves[i];
  }
}

}  // namespace kvlane::gpu
