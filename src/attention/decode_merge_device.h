// The end of decode attention for kernels: a warp, or four of them, put the partial states of one
// query head together, in the order of the sequence, and write its row of the result.
//
// A state costs 4 (head_dim + 2) bytes of reading; they were written just before, so mostly from
// the second-level cache. What takes time is to wait for it: a warp has eight states on their way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_float.h"

namespace kvlane {

// Of a launch. Addresses of rows are multiples of 16 bytes; results of 8 where they are BF16.
struct DecodeMerge {
  // [sequences + 1], as DecodePlan has it; no launch in front of this one that may still run writes
  // it (gpu/early_launch.h).
  const std::int32_t* first_state;
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

namespace decode_merge {

using namespace gpu;

// The states of a row are merged in so many runs, whose results are added up in order: by one warp,
// or a warp a run, with the same bits.
inline constexpr int kRuns = 4;
// Loads of a warp that are on their way.
inline constexpr int kAhead = 8;

// Four channels of the states of a run, which are worth their distance from the row's maximum.
struct Part {
  Floats4 out;
  float sum;
};

struct Row {
  std::size_t first;  // state i of the row is first + i * heads
  int states;
};
KVLANE_DEVICE Row row_of(const DecodeMerge& merge, int row) {
  const int sequence = row / merge.heads;
  const std::int32_t first = merge.first_state[sequence];
  return {std::size_t(first) + row % merge.heads,
          (merge.first_state[sequence + 1] - first) / merge.heads};
}

// Of all states with tokens; minus infinity without any.
template <class Thread>
KVLANE_DEVICE float max_of(Thread& t, const DecodeMerge& merge, const Row& row) {
  float max = minus_infinity();
  for (int i = t.lane(); i < row.states; i += kWarpThreads) {
    const std::size_t at = row.first + std::size_t(i) * merge.heads;
    const float own = merge.max[at];
    max = larger(max, merge.sum[at] != 0 ? own : minus_infinity());
  }
  KVLANE_UNROLL
  for (int by = 1; by < kWarpThreads; by *= 2) {
    max = larger(max, float_of(t.shuffle(bits_of(max), t.lane() ^ by)));
  }
  return max;
}

// Of the four channels from `channel` on, which are there. Lanes find out 32 factors at a time;
// what is loaded depends on nothing before it.
template <class Thread>
KVLANE_DEVICE Part merge_run(Thread& t, const DecodeMerge& merge, const Row& row, int run,
                             int channel, float max) {
  const int begin = row.states * run / kRuns, end = row.states * (run + 1) / kRuns;
  Part part{};
  KVLANE_NO_UNROLL
  for (int chunk = begin; chunk < end; chunk += kWarpThreads) {
    const int own_state = chunk + t.lane() < end ? chunk + t.lane() : end - 1;
    const std::size_t own_at = row.first + std::size_t(own_state) * merge.heads;
    const float own_max = merge.max[own_at], own_sum = merge.sum[own_at];
    const bool counts = own_sum != 0 && chunk + t.lane() < end;
    const float factor = counts ? power_of_two(own_max - max) : 0;
    const float weight = counts ? own_sum * factor : 0;
    const int left = end - chunk < kWarpThreads ? end - chunk : kWarpThreads;
    KVLANE_NO_UNROLL
    for (int from = 0; from < left; from += kAhead) {
      Floats4 own[kAhead];
      KVLANE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int state = chunk + (from + i < left ? from + i : left - 1);
        const std::size_t at = row.first + std::size_t(state) * merge.heads;
        own[i] = load_floats(merge.out + at * merge.head_dim + channel);
      }
      KVLANE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const float by = float_of(t.shuffle(bits_of(factor), from + i));
        part.sum += float_of(t.shuffle(bits_of(weight), from + i));
        // What is behind the last state, or of no tokens, may be no number.
        KVLANE_UNROLL
        for (int j = 0; j < 4; ++j) part.out.x[j] += by != 0 ? times(own[i].x[j], by) : 0;
      }
    }
  }
  return part;
}

KVLANE_DEVICE void add(Part& all, const Part& part) {
  all.sum += part.sum;
  KVLANE_UNROLL
  for (int j = 0; j < 4; ++j) all.out.x[j] += part.out.x[j];
}

KVLANE_DEVICE void store(const DecodeMerge& merge, int row, int channel, float max,
                         const Part& all) {
  const std::size_t at = std::size_t(row) * merge.head_dim + channel;
  if (merge.total_out != nullptr) store_floats(merge.total_out + at, all.out);
  if (channel == 0 && merge.total_max != nullptr) merge.total_max[row] = max;
  if (channel == 0 && merge.total_sum != nullptr) merge.total_sum[row] = all.sum;
  const float scale = all.sum == 0 ? 0 : 1.0F / all.sum;
  Floats4 out = all.out;
  KVLANE_UNROLL
  for (int j = 0; j < 4; ++j) out.x[j] *= scale;
  if (merge.result_f32 != nullptr) store_floats(merge.result_f32 + at, out);
  if (merge.result_bf16 != nullptr) {
    store_pair(merge.result_bf16 + 2 * at, pack_bf16(out.x[0], out.x[1]),
               pack_bf16(out.x[2], out.x[3]));
  }
}

}  // namespace decode_merge

// By all lanes of a warp, for row `row` of sequences * heads.
template <class Thread>
KVLANE_DEVICE void merge_states(Thread& t, const DecodeMerge& merge, int row) {
  using namespace decode_merge;
  const Row states = row_of(merge, row);
  t.wait_previous();
  const float max = max_of(t, merge, states);
  for (int first = 0; first < merge.head_dim; first += 4 * kWarpThreads) {
    const int own = first + 4 * t.lane(), channel = own < merge.head_dim ? own : 0;
    Part all{};
    KVLANE_NO_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      add(all, merge_run(t, merge, states, run, channel, max));
    }
    if (own < merge.head_dim) store(merge, row, channel, max, all);
  }
}

struct DecodeMergeShared {
  decode_merge::Part parts[decode_merge::kRuns][gpu::kWarpThreads];
};

// By all threads of a block of kRuns warps: the same of few rows, sooner.
template <class Thread>
KVLANE_DEVICE void merge_states_together(Thread& t, const DecodeMerge& merge, int row,
                                         DecodeMergeShared& shared) {
  using namespace decode_merge;
  const Row states = row_of(merge, row);
  t.wait_previous();
  const float max = max_of(t, merge, states);
  for (int first = 0; first < merge.head_dim; first += 4 * kWarpThreads) {
    const int own = first + 4 * t.lane(), channel = own < merge.head_dim ? own : 0;
    shared.parts[t.warp()][t.lane()] = merge_run(t, merge, states, t.warp(), channel, max);
    t.sync_block();
    if (t.warp() == 0 && own < merge.head_dim) {
      Part all{};
      KVLANE_UNROLL
      for (int run = 0; run < kRuns; ++run) add(all, shared.parts[run][t.lane()]);
      store(merge, row, channel, max, all);
    }
    t.sync_block();
  }
}

}  // namespace kvlane
