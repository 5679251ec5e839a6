// The random numbers of codes that are rounded up or down by chance, for 8 tokens and 16 channels.
// For AVX-512 files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "quant/hack_kernels.h"

namespace kvlane::hack {

// Counters and random words of Philox4x32-10 (base/random.h), 16 calls, one in each lane.
struct PhiloxLanes {
  __m512i words[4];
};

// Both halves of 16 products, of which the processor makes 8 at a time: of even lanes, then of odd
// ones. Moving them is left to shuffles, as shifts and products share a port.
static inline void multiply(__m512i a, std::uint32_t b, __m512i& high, __m512i& low) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(b));
  const __m512i even = _mm512_mul_epu32(a, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_shuffle_epi32(a, _MM_PERM_DDBB), factor);
  high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
  low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CCAA);
}

static inline PhiloxLanes philox(PhiloxLanes at) {
  constexpr int kExclusiveOr = 0x96;
  auto key_low = static_cast<std::uint32_t>(kDrawKey);
  auto key_high = static_cast<std::uint32_t>(kDrawKey >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    __m512i high[2];
    __m512i low[2];
    multiply(at.words[0], 0xD2511F53U, high[0], low[0]);
    multiply(at.words[2], 0xCD9E8D57U, high[1], low[1]);
    at.words[0] = _mm512_ternarylogic_epi32(
        high[1], at.words[1], _mm512_set1_epi32(static_cast<int>(key_low)), kExclusiveOr);
    at.words[2] = _mm512_ternarylogic_epi32(
        high[0], at.words[3], _mm512_set1_epi32(static_cast<int>(key_high)), kExclusiveOr);
    at.words[1] = low[1];
    at.words[3] = low[0];
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return at;
}

static inline PhiloxLanes counters(const SealJob& job, __m512i position, __m512i index) {
  const std::uint32_t plane = 2 * job.draw.kv_head + (job.part == Part::kKeys ? 0 : 1);
  return {{_mm512_add_epi32(position, _mm512_set1_epi32(static_cast<int>(job.draw.position))),
           index, _mm512_set1_epi32(static_cast<int>(plane)),
           _mm512_set1_epi32(static_cast<int>(job.draw.layer))}};
}

// random_bits() of channels `channel` ... + 15 of tokens `token` ... + 7, where codes are those of
// K: a call is 8 channels of a token.
static inline void draw_keys(const SealJob& job, int token, int channel, __m512i (&random)[8]) {
  // Which calls: so that four words of each, brought together, are where their tokens' channels
  // are.
  const __m512i tokens = _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
  const __m512i eights = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
  const PhiloxLanes drawn =
      philox(counters(job, _mm512_add_epi32(tokens, _mm512_set1_epi32(token)),
                      _mm512_add_epi32(eights, _mm512_set1_epi32(channel / 8))));
  const __m512i low[2] = {_mm512_unpacklo_epi32(drawn.words[0], drawn.words[1]),
                          _mm512_unpacklo_epi32(drawn.words[2], drawn.words[3])};
  const __m512i high[2] = {_mm512_unpackhi_epi32(drawn.words[0], drawn.words[1]),
                           _mm512_unpackhi_epi32(drawn.words[2], drawn.words[3])};
  const __m512i pairs[4] = {
      _mm512_unpacklo_epi64(low[0], low[1]), _mm512_unpackhi_epi64(low[0], low[1]),
      _mm512_unpacklo_epi64(high[0], high[1]), _mm512_unpackhi_epi64(high[0], high[1])};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    random[2 * i] = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs[i]));
    random[2 * i + 1] = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(pairs[i], 1));
  }
}

// The same for V: a call is 8 tokens of a channel.
static inline void draw_values(const SealJob& job, int token, int channel, __m512i (&random)[8]) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const PhiloxLanes drawn = philox(
      counters(job, _mm512_set1_epi32(token), _mm512_add_epi32(lanes, _mm512_set1_epi32(channel))));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    random[2 * i] = _mm512_and_si512(drawn.words[i], _mm512_set1_epi32(0xffff));
    random[2 * i + 1] = _mm512_srli_epi32(drawn.words[i], 16);
  }
}

}  // namespace kvlane::hack
