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

// Codes of register r of a word, as bytes.
template <int kBits>
inline __m512i codes_of(__m512i words, int r) {
  if constexpr (kBits == 8) {
    return words;
  } else {
    const __m512i shifted = r == 0 ? words : _mm512_srli_epi32(words, kBits * r);
    return _mm512_and_si512(shifted, _mm512_set1_epi8((1 << kBits) - 1));
  }
}

// Codes of register r where they are in a word: times 2^(kBits * r).
template <int kBits>
inline __m512i codes_in_place(__m512i words, int r) {
  return _mm512_and_si512(words,
                          _mm512_set1_epi8(static_cast<char>(((1 << kBits) - 1) << (kBits * r))));
}

static inline __m512i broadcast(const void* four_bytes) {
  int word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Products of codes of K's channels first ... end - 1 with those of kRows queries, for kGroups
// times 16 tokens, whose words begin at `words`. Gives where the words of channel `end` begin.
template <int kBits, int kRows, int kGroups>
inline const std::byte* multiply_keys(const std::byte* words, const HackQuery& query, int row,
                                      int first, int end, Prefetch& prefetch,
                                      __m512i (&dots)[kRows][kGroups]) {
  constexpr int kRegisters = 8 / kBits;
  constexpr int kChannels = 32 / kBits;  // of a word
  // Vectors shift slowly. For one row it pays to leave codes where they are and to have a sum for
  // each register: multiples of its power of two, shifted once in the end.
  constexpr int kSums = kRows == 1 ? kRegisters : 1;
  __m512i sums[kSums][kRows][kGroups];
  for (auto& of_register : sums) {
    for (auto& of_row : of_register) {
      for (auto& sum : of_row) sum = _mm512_setzero_si512();
    }
  }
  for (int i = first; i < end; i += kChannels, words += 4 * kBlockTokens) {
    __m512i word[kGroups];
    for (int group = 0; group < kGroups; ++group) {
      word[group] = _mm512_loadu_si512(words + 64 * group);
      prefetch.line();
    }
    for (int r = 0; r < kRegisters; ++r) {
      __m512i codes[kGroups];
      for (int group = 0; group < kGroups; ++group) {
        codes[group] =
            kSums > 1 ? codes_in_place<kBits>(word[group], r) : codes_of<kBits>(word[group], r);
      }
      for (int j = 0; j < kRows; ++j) {
        const __m512i four = broadcast(&query.codes[row + j][i + 4 * r]);
        for (int group = 0; group < kGroups; ++group) {
          __m512i& sum = sums[kSums > 1 ? r : 0][j][group];
          sum = _mm512_dpbusd_epi32(sum, codes[group], four);
        }
      }
    }
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) dots[j][group] = sums[0][j][group];
  }
  for (int r = 1; r < kSums; ++r) {
    for (int group = 0; group < kGroups; ++group) {
      dots[0][group] =
          _mm512_add_epi32(dots[0][group], _mm512_srai_epi32(sums[r][0][group], kBits * r));
    }
  }
  return words;
}

// Sums, or greatest, or least, of the lanes of `rows` vectors, four at a time: a row's order of
// summation is the same wherever it is. `v` and `to` have room for whole fours.
struct Sum {
  static __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};
struct Greatest {
  static __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
};
struct Least {
  static __m512 of(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_min_ps(a, b); }
};
template <class Op>
inline void reduce(const __m512* v, int rows, float* to) {
  for (int row = 0; row < rows; row += 4) {
    const __m512 low =
        Op::of(_mm512_unpacklo_ps(v[row], v[row + 1]), _mm512_unpackhi_ps(v[row], v[row + 1]));
    const __m512 high = Op::of(_mm512_unpacklo_ps(v[row + 2], v[row + 3]),
                               _mm512_unpackhi_ps(v[row + 2], v[row + 3]));
    // Every 128 bits are the four rows now.
    const __m512 four =
        Op::of(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
    const __m512 two = Op::of(four, _mm512_shuffle_f32x4(four, four, 0x4e));
    const __m128 one = Op::of(_mm512_castps512_ps128(two), _mm512_extractf32x4_ps(two, 1));
    _mm_storeu_ps(to + row, one);
  }
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
