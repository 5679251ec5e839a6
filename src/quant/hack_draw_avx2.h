// The random numbers of codes that are rounded up or down by chance, for 8 tokens and 8 channels.
// For AVX2 files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "quant/hack_kernels.h"

namespace kvlane::hack::avx2 {

// Counters and random words of Philox4x32-10 (base/random.h), 8 calls, one in each lane.
struct PhiloxLanes {
  __m256i words[4];
};

static inline __m256i fill(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

// Both halves of 8 products, of which the processor makes 4 at a time: of even lanes, then of odd
// ones.
static inline void multiply(__m256i a, std::uint32_t b, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, fill(b));
  const __m256i odd = _mm256_mul_epu32(_mm256_shuffle_epi32(a, 0xf5), fill(b));
  high = _mm256_blend_epi32(_mm256_shuffle_epi32(even, 0xf5), odd, 0xaa);
  low = _mm256_blend_epi32(even, _mm256_shuffle_epi32(odd, 0xa0), 0xaa);
}

static inline PhiloxLanes philox(PhiloxLanes at) {
  auto key_low = static_cast<std::uint32_t>(kDrawKey);
  auto key_high = static_cast<std::uint32_t>(kDrawKey >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    __m256i high[2];
    __m256i low[2];
    multiply(at.words[0], 0xD2511F53U, high[0], low[0]);
    multiply(at.words[2], 0xCD9E8D57U, high[1], low[1]);
    at.words[0] = _mm256_xor_si256(_mm256_xor_si256(high[1], at.words[1]), fill(key_low));
    at.words[2] = _mm256_xor_si256(_mm256_xor_si256(high[0], at.words[3]), fill(key_high));
    at.words[1] = low[1];
    at.words[3] = low[0];
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return at;
}

static inline PhiloxLanes draw(const SealJob& job, __m256i position, __m256i index) {
  const std::uint32_t plane = 2 * job.draw.kv_head + (job.part == Part::kKeys ? 0 : 1);
  return philox({{_mm256_add_epi32(position, fill(job.draw.position)), index, fill(plane),
                  fill(job.draw.layer)}});
}

// random_bits() of channels `channel` ... + 7 of tokens `token` ... + 7, where codes are those of
// K: a call is 8 channels of a token.
static inline void draw_keys(const SealJob& job, int token, int channel, __m256i (&random)[8]) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const PhiloxLanes drawn =
      draw(job, _mm256_add_epi32(lanes, _mm256_set1_epi32(token)), _mm256_set1_epi32(channel / 8));
  // The four words of a call brought together: of tokens i and i + 4 in the halves of a vector.
  const __m256i low[2] = {_mm256_unpacklo_epi32(drawn.words[0], drawn.words[1]),
                          _mm256_unpacklo_epi32(drawn.words[2], drawn.words[3])};
  const __m256i high[2] = {_mm256_unpackhi_epi32(drawn.words[0], drawn.words[1]),
                           _mm256_unpackhi_epi32(drawn.words[2], drawn.words[3])};
  const __m256i calls[4] = {
      _mm256_unpacklo_epi64(low[0], low[1]), _mm256_unpackhi_epi64(low[0], low[1]),
      _mm256_unpacklo_epi64(high[0], high[1]), _mm256_unpackhi_epi64(high[0], high[1])};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    random[i] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(calls[i]));
    random[i + 4] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(calls[i], 1));
  }
}

// The same for V: a call is 8 tokens of a channel.
static inline void draw_values(const SealJob& job, int token, int channel, __m256i (&random)[8]) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const PhiloxLanes drawn =
      draw(job, _mm256_set1_epi32(token), _mm256_add_epi32(lanes, _mm256_set1_epi32(channel)));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    random[2 * i] = _mm256_and_si256(drawn.words[i], _mm256_set1_epi32(0xffff));
    random[2 * i + 1] = _mm256_srli_epi32(drawn.words[i], 16);
  }
}

}  // namespace kvlane::hack::avx2
