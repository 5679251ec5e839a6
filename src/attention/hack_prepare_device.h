// Queries for attention on codes in kernels: a warp makes of some rows what every unit that reads
// them needs (formulas: attention/hack_page.h). With a row's scale a = max |q| / 127 and y = q / a:
//
//   codes   u, the integer nearest to y
//   rests   y - u in binary16, within 2^-13: with u it is an operand of products with means of
//           channels, that are 16 bits, too
//   terms   of each partition of K {sum of y, h (sum of y - u)}; by both {0, -h (sum of u)}
//
// So scores are a times what the matrix unit leaves. Codes and scale are those of the scalar code,
// bit for bit. A row costs 2 head_dim bytes of reading and 3 head_dim + 68 of writing, once; pages
// cost hundreds of times that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prepare_batch.h"
#include "quant/hadamard_device.h"

namespace kvlane {

// Lanes that a row of so many channels takes, eight channels each.
constexpr int hack_prepare_lanes(int head_dim) {
  return head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
}

// The terms of a row, from what a lane's channels of it have: sums of y, and of codes.
template <int kLanes, class Thread>
KVLANE_DEVICE void store_terms(Thread& t, const HackPrepare& p, int row, float sum,
                               float sum_of_codes) {
  using namespace gpu;
  const int own = t.lane() % kLanes;
  HackTerm* const terms = p.to.terms + std::size_t(row) * kHackTerms;
  if (p.partition == 0) {
    sum_of_codes = sum_of_lanes(t, sum_of_codes, kLanes);
    if (row < p.rows && own < kHackTerms) {
      terms[own] = {0, own == 0 ? times(p.middle, -sum_of_codes) : 0};
    }
    return;
  }
  // Every lane of a partition has its term, and lane i of a row stores term i.
  const int run = p.partition < 8 * kLanes ? p.partition / 8 : kLanes;
  sum = sum_of_lanes(t, sum, run);
  sum_of_codes = sum_of_lanes(t, sum_of_codes, run);
  const float centre = times(p.middle, sum - sum_of_codes);
  const int from = own * run;
  const int lane = t.lane() - own + from % kLanes;
  const HackTerm term = {float_of(t.shuffle(bits_of(sum), lane)),
                         float_of(t.shuffle(bits_of(centre), lane))};
  if (row < p.rows && own < kHackTerms) {
    terms[own] = 8 * from < p.head_dim ? term : HackTerm{0, 0};
  }
}

// By all lanes of a warp, kLanes of them for a row of at most 8 kLanes channels: of the rows from
// `first_row` on, as far as they are there.
template <int kLanes, class Thread>
KVLANE_DEVICE void prepare_queries(Thread& t, const HackPrepare& p, int first_row) {
  using namespace gpu;
  constexpr float kMost = 127;
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to a whole number, in the low bits
  const int own = t.lane() % kLanes, channel = 8 * own;
  const int row = first_row + t.lane() / kLanes;
  const bool there = row < p.rows && channel < p.head_dim;
  const std::size_t first = std::size_t(row) * p.head_dim + channel;
  Words4 pairs{};
  if (there) pairs = load_once(p.q + 2 * first);
  float q[8];
  KVLANE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t pair = pairs.w[i / 2];
    q[i] = times(float_of(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U), p.scale);
  }
  mix_rows<kLanes>(t, p.mix, q);
  float most = 0;
  KVLANE_UNROLL
  for (int i = 0; i < 8; ++i) most = larger(most, std::abs(q[i]));
  KVLANE_UNROLL
  for (int by = 1; by < kLanes; by *= 2) {
    most = larger(most, float_of(t.shuffle(bits_of(most), t.lane() ^ by)));
  }
  const float inverse = most > 0 ? kMost / most : 0;
  if (there && own == 0) p.to.scales[row] = most / kMost;

  float sum = 0, sum_of_codes = 0;  // of this lane's; those of codes are exact in any order
  std::uint32_t codes[2] = {};
  Words4 rests;
  KVLANE_UNROLL
  for (int i = 0; i < 8; i += 2) {
    float left[2];
    KVLANE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const float y = times(q[i + j], inverse);
      const float rounded = y + kRound;
      const float code = rounded - kRound;
      codes[i / 4] |= (bits_of(rounded) & 0xFF) << 8 * (i % 4 + j);
      left[j] = y - code;
      sum += y;
      sum_of_codes += code;
    }
    rests.w[i / 2] = pack_fp16(left[0], left[1]);
  }
  if (there) {
    store_pair(p.to.codes + first, codes[0], codes[1]);
    store_once(p.to.rests + 2 * first, rests);
  }

  store_terms<kLanes>(t, p, row, sum, sum_of_codes);
}

// Rows of a warp.
constexpr int hack_prepare_rows(int head_dim) {
  return gpu::kWarpThreads / hack_prepare_lanes(head_dim);
}

// By all lanes of a warp: the same of hack_prepare_rows() rows.
template <class Thread>
KVLANE_DEVICE void prepare_queries(Thread& t, const HackPrepare& p, int first_row) {
  switch (hack_prepare_lanes(p.head_dim)) {
    case 8: return prepare_queries<8>(t, p, first_row);
    case 16: return prepare_queries<16>(t, p, first_row);
    default: return prepare_queries<32>(t, p, first_row);
  }
}

}  // namespace kvlane
