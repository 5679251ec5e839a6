// Queries for attention on codes in kernels: a warp makes of one row what every unit that reads it
// needs (formulas: attention/hack_page.h). With a row's scale a = max |q| / 127 and y = q / a:
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

#include "quant/hadamard_device.h"

namespace kvlane {

// Partitions of K at most: of 32 channels.
inline constexpr int kHackTerms = 8;
inline constexpr int kHackPreparedDimMax = 32 * kHackTerms;

struct HackTerm {
  float sum, centre;
};

// What is made of rows [rows][head_dim]; rows of codes, rests and terms begin at multiples of 16
// bytes.
struct HackPrepared {
  std::byte* codes;  // [rows][head_dim], signed
  std::byte* rests;  // [rows][head_dim], binary16
  float* scales;     // [rows]
  HackTerm* terms;   // [rows][kHackTerms]; 0 of partitions that there are not
};

// Of a launch.
struct HackPrepare {
  const std::byte* q;  // [rows][head_dim], BF16, RoPE applied
  std::int32_t rows;
  std::int32_t head_dim;   // a multiple of 16 up to kHackPreparedDimMax
  float scale;             // of scores: log2(e) / sqrt(head_dim)
  ChannelMix mix;          // of the format
  float middle;            // h, of codes of K
  std::int32_t partition;  // 32, 64 or 128 channels of K; 0: by both
  HackPrepared to;
};

// By all lanes of a warp, for row `row`.
template <class Thread>
KVLANE_DEVICE void prepare_query(Thread& t, const HackPrepare& p, int row) {
  using namespace gpu;
  constexpr float kMost = 127;
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to a whole number, in the low bits
  const std::size_t first = std::size_t(row) * p.head_dim;
  float q[kHackTerms];
  KVLANE_UNROLL
  for (int i = 0; i < kHackTerms; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    q[i] = 0;
    if (channel < p.head_dim) {
      q[i] = times(float_of(load_aligned_half(p.q + 2 * (first + channel)) << 16), p.scale);
    }
  }
  mix_row(t, p.mix, q);
  float most = 0;
  KVLANE_UNROLL
  for (int i = 0; i < kHackTerms; ++i) most = larger(most, std::abs(q[i]));
  most = max_of_lanes(t, most);
  const float inverse = most > 0 ? kMost / most : 0;
  if (t.lane() == 0) p.to.scales[row] = most / kMost;

  HackTerm parts[kHackTerms];  // of 32 channels: this lane's
  KVLANE_UNROLL
  for (int i = 0; i < kHackTerms; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    const float y = times(q[i], inverse);
    const float rounded = y + kRound;
    const float code = rounded - kRound;
    if (channel < p.head_dim) {
      store_byte(p.to.codes + first + channel, bits_of(rounded));
      store_aligned_half(p.to.rests + 2 * (first + channel), pack_fp16(y - code, 0));
    }
    parts[i] = {y, code};
  }
  HackTerm* const terms = p.to.terms + std::size_t(row) * kHackTerms;
  if (p.partition == 0) {
    float codes = 0;  // whole numbers: exact in any order
    KVLANE_UNROLL
    for (int i = 0; i < kHackTerms; ++i) codes += parts[i].centre;
    codes = sum_of_lanes(t, codes);
    if (t.lane() < kHackTerms) {
      terms[t.lane()] = {0, t.lane() == 0 ? times(p.middle, -codes) : 0};
    }
    return;
  }
  const int run = p.partition / kWarpThreads;  // of parts
  HackTerm term{0, 0};
  KVLANE_UNROLL
  for (int i = 0; i < kHackTerms; ++i) {
    if (i % run == 0) term = {0, 0};
    const float sum = sum_of_lanes(t, parts[i].sum);
    const float codes = sum_of_lanes(t, parts[i].centre);  // exact, too
    term.sum += sum;
    term.centre += times(p.middle, sum - codes);
    if (t.lane() != 0) continue;
    if (i % run == run - 1) terms[i / run] = term;
    if (i >= kHackTerms / run) terms[i] = {0, 0};
  }
}

}  // namespace kvlane
