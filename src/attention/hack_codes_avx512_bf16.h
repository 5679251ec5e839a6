// What attention on codes by integer products has in common in all its forms: codes as bytes, their
// products with a query, weights as bytes. For such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention/hack_page.h"
#include "attention/prefetch.h"
#include "quant/hack_avx512.h"

namespace kvlane::hack {

// Codes of register r of a word as bytes, times 2^(kBits * (r % kSums)): those of kSums registers
// stay where they are and are masked alone, as vectors shift slowly.
template <int kBits, int kSums = 1>
static inline __m512i codes_of(__m512i words, int r) {
  if constexpr (kBits == 8) {
    return words;
  } else {
    const int stay = kBits * (r % kSums);
    const int down = kBits * r - stay;
    const __m512i shifted = down == 0 ? words : _mm512_srli_epi32(words, down);
    return _mm512_and_si512(shifted,
                            _mm512_set1_epi8(static_cast<char>(((1 << kBits) - 1) << stay)));
  }
}

static inline __m512i broadcast(const void* four_bytes) {
  int word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Sums that products of a word's registers go into: one for those that are too large by the same
// power of two, which is taken back once in the end. One row has vector registers to spare for
// them, four have some.
template <int kBits, int kRows>
inline constexpr int kKeySums = kBits == 8   ? 1
                                : kRows == 1 ? 8 / kBits
                                : kBits == 2 ? 2
                                             : 1;

// Products of codes of K's channels first ... end - 1 with those of kRows queries, for kGroups
// times 16 tokens, whose words begin at `words`. Gives where the words of channel `end` begin.
// Unrolled by order: g++ 12 does it too late by itself to keep sums in registers.
template <int kBits, int kRows, int kGroups>
static inline const std::byte* multiply_keys(const std::byte* words, const HackQuery& query,
                                             int row, int first, int end, Prefetch& prefetch,
                                             __m512i (&dots)[kRows][kGroups]) {
  constexpr int kRegisters = 8 / kBits;
  constexpr int kChannels = 32 / kBits;  // of a word
  constexpr int kSums = kKeySums<kBits, kRows>;
  __m512i sums[kSums][kRows][kGroups] = {};
  for (int i = first; i < end; i += kChannels, words += 4 * kBlockTokens) {
    __m512i word[kGroups];
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; ++group) {
      word[group] = _mm512_loadu_si512(words + 64 * group);
      prefetch.line();
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      __m512i codes[kGroups];
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        codes[group] = codes_of<kBits, kSums>(word[group], r);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) {
        const __m512i four = broadcast(&query.codes[row + j][i + 4 * r]);
#pragma GCC unroll 4
        for (int group = 0; group < kGroups; ++group) {
          __m512i& sum = sums[r % kSums][j][group];
          sum = _mm512_dpbusd_epi32(sum, codes[group], four);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; ++group) {
      dots[j][group] = sums[0][j][group];
#pragma GCC unroll 4
      for (int r = 1; r < kSums; ++r) {
        dots[j][group] =
            _mm512_add_epi32(dots[j][group], _mm512_srai_epi32(sums[r][j][group], kBits * r));
      }
    }
  }
  return words;
}

// What vectors of rows are reduced to: their lanes' sum, or the greatest, or the least.
struct Sum {
  static __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static __m256 of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};
struct Greatest {
  static __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  static __m256 of(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
};
struct Least {
  static __m512 of(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
  static __m256 of(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_min_ps(a, b); }
};

// Four rows' vectors, a lane for each: a row's order of summation is the same wherever it is.
template <class Op>
static inline __m128 reduce_four(const __m512* v) {
  const __m512 low = Op::of(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 high = Op::of(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  // Every 128 bits are the four rows now.
  const __m512 four =
      Op::of(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
  const __m256 two = Op::of(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  return Op::of(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
}
// `rows` vectors, four at a time: `v` and `to` have room for whole fours.
template <class Op>
static inline void reduce(const __m512* v, int rows, float* to) {
  for (int row = 0; row < rows; row += 4) _mm_storeu_ps(to + row, reduce_four<Op>(v + row));
}

// Weights as bytes in the order of V's words, from where packing has left them: byte 16 r + 4 c + k
// becomes that of token value_token(r, c, k), which lies at 16 j + 4 i + e for token 16 i + 4 j +
// e.
static inline __m512i in_value_order(__m512i packed) {
  struct Table {
    alignas(64) std::uint8_t from[kBlockTokens];
    constexpr Table() : from() {
      for (int i = 0; i < kBlockTokens; ++i) {
        const int token = value_token(i / 16, i / 4 % 4, i % 4);
        from[i] = static_cast<std::uint8_t>(token / 4 % 4 * 16 + token / 16 * 4 + token % 4);
      }
    }
  };
  static constexpr Table kTable;
  return _mm512_permutexvar_epi8(_mm512_load_si512(kTable.from), packed);
}

}  // namespace kvlane::hack
