// The end of decode attention for kernels: a warp puts the partial states of one query head
// together, in the order of the sequence, and writes its row of the result.
//
// A state costs 4 (head_dim + 2) bytes of reading; they were written just before, so mostly from
// the second-level cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_float.h"

namespace kvlane {

// Of a launch. Addresses of rows are multiples of 16 bytes; results of 8 where they are BF16.
struct DecodeMerge {
  const std::int32_t* first_state;  // [sequences + 1], as DecodePlan has it
  std::int32_t sequences, heads;
  std::int32_t head_dim;  // a multiple of 4
  const float* max;       // the states, as units left them
  const float* sum;
  const float* out;
  // [sequences][heads][head_dim] each; null where it is not wanted. A sequence without tokens has
  // zeros.
  float* result_f32;
  std::byte* result_bf16;
  // The merged states, for more states to come; null where they are not wanted. That of no tokens
  // is -inf, 0 and zeros.
  float* total_max;  // [sequences][heads]
  float* total_sum;  // [sequences][heads]
  float* total_out;  // [sequences][heads][head_dim]
};

// By all lanes of a warp, for row `row` of sequences * heads.
template <class Thread>
KVLANE_DEVICE void merge_states(Thread& t, const DecodeMerge& merge, int row) {
  using namespace gpu;
  const int sequence = row / merge.heads, head = row % merge.heads;
  const std::size_t first = std::size_t(merge.first_state[sequence]) + head;
  const std::size_t end = merge.first_state[sequence + 1];
  float max = minus_infinity();
  for (std::size_t i = first; i < end; i += merge.heads) {
    if (merge.sum[i] != 0 && merge.max[i] > max) max = merge.max[i];
  }
  for (int channel = 4 * t.lane(); channel < merge.head_dim; channel += 4 * kWarpThreads) {
    float sum = 0;
    Floats4 out{};
    for (std::size_t i = first; i < end; i += merge.heads) {
      if (merge.sum[i] == 0) continue;
      const float by = power_of_two(merge.max[i] - max);
      const Floats4 own = load_floats(merge.out + i * merge.head_dim + channel);
      sum += merge.sum[i] * by;
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) out.x[j] += own.x[j] * by;
    }
    const std::size_t at = std::size_t(row) * merge.head_dim + channel;
    if (merge.total_out != nullptr) store_floats(merge.total_out + at, out);
    if (channel == 0 && merge.total_max != nullptr) merge.total_max[row] = max;
    if (channel == 0 && merge.total_sum != nullptr) merge.total_sum[row] = sum;
    const float scale = sum == 0 ? 0 : 1.0F / sum;
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) out.x[j] *= scale;
    if (merge.result_f32 != nullptr) store_floats(merge.result_f32 + at, out);
    if (merge.result_bf16 != nullptr) {
      store_pair(merge.result_bf16 + 2 * at, pack_bf16(out.x[0], out.x[1]),
                 pack_bf16(out.x[2], out.x[3]));
    }
  }
}

}  // namespace kvlane
