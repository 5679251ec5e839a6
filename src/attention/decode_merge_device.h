// The end of decode attention for kernels: a warp, or four of them, put the partial states of one
// query head together, in the order of the sequence, and write its row of the result.
//
// A state costs 4 (head_dim + 2) bytes of reading; they were written just before, so mostly from
// the second-level cache. What takes time is to wait for it: a warp has eight states on their way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/decode_batch.h"
#include "gpu/device_float.h"

namespace kvlane {

namespace decode_merge {

using namespace gpu;

// The states of a row are merged in so many runs, whose results are added up in order: by one warp,
// or a warp a run, with the same bits.
inline constexpr int kRuns = 4;
// Loads of a warp that are on their way.
inline constexpr int kAhead = 8;

// Four channels of some states, and their sum, beside the largest of their maxima; minus infinity
// and zeros of none with tokens.
struct Part {
  Floats4 out;
  float sum, max;
};
KVLANE_DEVICE Part no_part() { return {{}, 0, minus_infinity()}; }

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

// What something beside `max` is worth beside one that is not less.
KVLANE_DEVICE float worth(float max, float beside) {
  return max == minus_infinity() ? 0 : power_of_two(max - beside);
}

// Adds a part.
KVLANE_DEVICE void add(Part& all, const Part& part) {
  const float max = larger(all.max, part.max);
  const float keep = worth(all.max, max), by = worth(part.max, max);
  all.sum = fused(part.sum, by, times(all.sum, keep));
  KVLANE_UNROLL
  for (int j = 0; j < 4; ++j) all.out.x[j] = fused(part.out.x[j], by, times(all.out.x[j], keep));
  all.max = max;
}

// Up to kAhead states from number `from` on, of the four channels from `channel` on, which are
// there. All that is loaded is on its way at once: lanes find out a factor each.
template <class Thread>
KVLANE_DEVICE Part merge_some(Thread& t, const DecodeMerge& merge, const Row& row, int from,
                              int end, int channel) {
  const auto at = [&](int i) {
    return row.first + std::size_t(from + i < end ? from + i : end - 1) * merge.heads;
  };
  const int own = t.lane() % kAhead;
  const float own_max = merge.max[at(own)], own_sum = merge.sum[at(own)];
  Floats4 out[kAhead];
  KVLANE_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    out[i] = load_floats(merge.out + at(i) * merge.head_dim + channel);
  }
  const bool counts = own_sum != 0 && from + own < end;
  Part part = no_part();
  part.max = counts ? own_max : minus_infinity();
  KVLANE_UNROLL
  for (int by = 1; by < kAhead; by *= 2) {
    part.max = larger(part.max, float_of(t.shuffle(bits_of(part.max), t.lane() ^ by)));
  }
  const float factor = counts ? power_of_two(own_max - part.max) : 0;
  const float weight = counts ? own_sum * factor : 0;
  KVLANE_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    const float by = float_of(t.shuffle(bits_of(factor), i));
    part.sum += float_of(t.shuffle(bits_of(weight), i));
    // What is behind the last state, or of no tokens, may be no number.
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) part.out.x[j] += by != 0 ? times(out[i].x[j], by) : 0;
  }
  return part;
}

template <class Thread>
KVLANE_DEVICE Part merge_run(Thread& t, const DecodeMerge& merge, const Row& row, int run,
                             int channel) {
  const int begin = row.states * run / kRuns, end = row.states * (run + 1) / kRuns;
  Part all = no_part();
  KVLANE_NO_UNROLL
  for (int from = begin; from < end; from += kAhead) {
    add(all, merge_some(t, merge, row, from, end, channel));
  }
  return all;
}

KVLANE_DEVICE void store(const DecodeMerge& merge, int row, int channel, const Part& all) {
  const std::size_t at = std::size_t(row) * merge.head_dim + channel;
  if (merge.total_out != nullptr) store_floats(merge.total_out + at, all.out);
  if (channel == 0 && merge.total_max != nullptr) merge.total_max[row] = all.max;
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
  for (int first = 0; first < merge.head_dim; first += 4 * kWarpThreads) {
    const int own = first + 4 * t.lane(), channel = own < merge.head_dim ? own : 0;
    Part all = no_part();
    KVLANE_NO_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      add(all, merge_run(t, merge, states, run, channel));
    }
    if (own < merge.head_dim) store(merge, row, channel, all);
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
  for (int first = 0; first < merge.head_dim; first += 4 * kWarpThreads) {
    const int own = first + 4 * t.lane(), channel = own < merge.head_dim ? own : 0;
    shared.parts[t.warp()][t.lane()] = merge_run(t, merge, states, t.warp(), channel);
    t.sync_block();
    if (t.warp() == 0 && own < merge.head_dim) {
      Part all = no_part();
      KVLANE_UNROLL
      for (int run = 0; run < kRuns; ++run) add(all, shared.parts[run][t.lane()]);
      store(merge, row, channel, all);
    }
    t.sync_block();
  }
}

}  // namespace kvlane
