// One page with AVX-512, in FP32: BF16 widens by a shift or a mask, 32 values at a time, into those
// at even and those at odd places. Two multiply-adds a cycle do more than the BF16 dot product,
// which takes two cycles, once a widened vector serves several rows.
//
// Scores: lanes are dimensions, 16 (row, token) pairs at a time, either 4 rows x 4 tokens or 1 row
// x 16 tokens; 16 accumulators are reduced by one butterfly, so every score has the same order of
// summation in both shapes. Output: lanes are channels, tokens are added one by one. Bytes: 4 * 64
// * head_dim a page. Operations: 4 * 64 * head_dim a row.
//
// With few rows memory is the limit, and a core gets the most of it where a line is asked for with
// every line that is used, at even distances, some ten operations apart: lab/attention/README.md.
// So one row reads K and V from front to back, and prefetches stand between multiply-adds.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/page_kernel.h"
#include "attention/prefetch.h"
#include "attention/softmax_avx512.h"

namespace kvlane {
namespace {

// Elements of the 32-wide step that starts at `first`.
inline __mmask32 step_mask(int head_dim, int first) {
  return head_dim - first >= 32 ? 0xffffffffU : (1U << (head_dim - first)) - 1U;
}

// 32 BF16 values as two vectors of floats: those at even and those at odd places.
struct Pair {
  __m512 even;
  __m512 odd;
};
inline Pair widen(const std::uint16_t* p, __mmask32 mask) {
  const __m512i both = _mm512_maskz_loadu_epi16(mask, p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))};
}

// Rows of queries, widened: for every 32 dimensions those at even and those at odd places.
struct Queries {
  alignas(64) float of[kTileRows][kTileHeadDimMax / 32][2][16];
};

// A query's parts add up without rounding: they are those of a value in FP32.
inline void widen_queries(const PageQuery& query, int rows, Queries& queries) {
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < query.key_dim; i += 32) {
      const __mmask32 mask = step_mask(query.key_dim, i);
      Pair sum = widen(query.q[row] + i, mask);
      if (query.parts == 2) {
        const Pair rest = widen(query.q[row] + query.part_stride + i, mask);
        sum.even = _mm512_add_ps(sum.even, rest.even);
        sum.odd = _mm512_add_ps(sum.odd, rest.odd);
      }
      _mm512_store_ps(queries.of[row][i / 32][0], sum.even);
      _mm512_store_ps(queries.of[row][i / 32][1], sum.odd);
    }
  }
}

// Sums of the lanes of 16 vectors: result 4j + e is the sum of acc[4e + j].
inline __m512 reduce16(const __m512 acc[16]) {
  __m512 eight[8];
  for (int i = 0; i < 8; ++i) {  // halves: (a | b)
    const __m512 a = acc[2 * i];
    const __m512 b = acc[2 * i + 1];
    eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  __m512 four[4];
  for (int i = 0; i < 4; ++i) {  // quarters: (a | b | c | d)
    const __m512 a = eight[2 * i];
    const __m512 b = eight[2 * i + 1];
    four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  __m512 two[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 a = four[2 * i];
    const __m512 b = four[2 * i + 1];
    two[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88),
                       _mm512_shuffle_ps(two[0], two[1], 0xdd));
}

// Scores of 4 rows x 4 tokens: 16 bytes for each row.
inline void scores_4x4(const Queries& queries, int first, const std::uint16_t* keys, int head_dim,
                       Prefetch& prefetch, float* scores) {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_setzero_ps();
  for (int i = 0; i < head_dim; i += 32) {
    const __mmask32 mask = step_mask(head_dim, i);
    Pair key[4];
    for (int token = 0; token < 4; ++token) {
      key[token] = widen(keys + token * head_dim + i, mask);
    }
    for (int row = 0; row < 4; ++row) {
      const __m512 even = _mm512_load_ps(queries.of[first + row][i / 32][0]);
      const __m512 odd = _mm512_load_ps(queries.of[first + row][i / 32][1]);
      for (int token = 0; token < 4; ++token) {
        __m512& a = acc[4 * token + row];  // transposed, as reduce16 wants it
        a = _mm512_fmadd_ps(even, key[token].even, a);
        a = _mm512_fmadd_ps(odd, key[token].odd, a);
      }
      prefetch.line();
    }
  }
  const __m512 sums = reduce16(acc);
  _mm_storeu_ps(scores, _mm512_castps512_ps128(sums));
  _mm_storeu_ps(scores + kBlockTokens, _mm512_extractf32x4_ps(sums, 1));
  _mm_storeu_ps(scores + 2 * kBlockTokens, _mm512_extractf32x4_ps(sums, 2));
  _mm_storeu_ps(scores + 3 * kBlockTokens, _mm512_extractf32x4_ps(sums, 3));
}

// Scores of 1 row x 16 tokens.
inline void scores_1x16(const Queries& queries, int row, const std::uint16_t* keys, int head_dim,
                        Prefetch& prefetch, float* scores) {
  __m512 acc[16];
  for (int token = 0; token < 16; ++token) {
    __m512 a = _mm512_setzero_ps();
    for (int i = 0; i < head_dim; i += 32) {
      const Pair key = widen(keys + token * head_dim + i, step_mask(head_dim, i));
      prefetch.line();
      a = _mm512_fmadd_ps(_mm512_load_ps(queries.of[row][i / 32][0]), key.even, a);
      a = _mm512_fmadd_ps(_mm512_load_ps(queries.of[row][i / 32][1]), key.odd, a);
    }
    acc[4 * (token & 3) + (token >> 2)] = a;
  }
  _mm512_storeu_ps(scores, reduce16(acc));
}

// 32 * kWide channels of kRows rows: out * keep + weights x V.
template <int kRows, int kWide>
inline void accumulate_values(const std::uint16_t* values, int head_dim, int channel, int tokens,
                              const float (*weights)[kBlockTokens], const float* keep,
                              Prefetch& prefetch, float* out) {
  __mmask32 mask[kWide];
  for (int i = 0; i < kWide; ++i) mask[i] = step_mask(head_dim, channel + 32 * i);
  Pair sum[kRows][kWide];
  for (auto& row : sum) {
    for (Pair& pair : row) pair = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  }
  for (int token = 0; token < tokens; ++token) {
    Pair value[kWide];
    for (int i = 0; i < kWide; ++i) {
      value[i] = widen(values + token * head_dim + channel + 32 * i, mask[i]);
      if (kRows == 1) prefetch.line();
    }
    for (int row = 0; row < kRows; ++row) {
      const __m512 weight = _mm512_set1_ps(weights[row][token]);
      for (int i = 0; i < kWide; ++i) {
        sum[row][i].even = _mm512_fmadd_ps(value[i].even, weight, sum[row][i].even);
        sum[row][i].odd = _mm512_fmadd_ps(value[i].odd, weight, sum[row][i].odd);
      }
      if (kRows > 1 && row < kWide) prefetch.line();  // not all at once
    }
  }
  const __m512i first_half =
      _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second_half =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int row = 0; row < kRows; ++row) {
    const __m512 factor = _mm512_set1_ps(keep[row]);
    for (int i = 0; i < kWide; ++i) {
      float* o = out + row * head_dim + channel + 32 * i;
      const auto mask_low = static_cast<__mmask16>(mask[i]);
      const auto mask_high = static_cast<__mmask16>(mask[i] >> 16);
      const __m512 a = _mm512_permutex2var_ps(sum[row][i].even, first_half, sum[row][i].odd);
      const __m512 b = _mm512_permutex2var_ps(sum[row][i].even, second_half, sum[row][i].odd);
      _mm512_mask_storeu_ps(o, mask_low,
                            _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask_low, o), factor, a));
      _mm512_mask_storeu_ps(o + 16, mask_high,
                            _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask_high, o + 16), factor, b));
    }
  }
}

// All channels of kRows rows, as many at a time as accumulators are left for.
template <int kRows>
inline void accumulate_rows(const std::uint16_t* values, int head_dim, int tokens,
                            const float (*weights)[kBlockTokens], const float* keep,
                            Prefetch& prefetch, float* out) {
  constexpr int kWide = kRows == 1 ? 4 : 2;
  int channel = 0;
  for (; channel + 32 * (kWide - 1) < head_dim; channel += 32 * kWide) {
    accumulate_values<kRows, kWide>(values, head_dim, channel, tokens, weights, keep, prefetch,
                                    out);
  }
  for (; channel < head_dim; channel += 32) {
    accumulate_values<kRows, 1>(values, head_dim, channel, tokens, weights, keep, prefetch, out);
  }
}

}  // namespace

void attend_page_avx512(const PageQuery& query, const std::uint16_t* page, StateTile& tile) {
  const int key_dim = query.key_dim;
  const int head_dim = tile.head_dim;
  const std::uint16_t* keys = page;
  const std::uint16_t* values = page + kBlockTokens * key_dim;
  alignas(64) float scores[kTileRows][kBlockTokens];  // then probabilities
  float keep[kTileRows];
  Queries queries;
  widen_queries(query, tile.rows, queries);
  Prefetch prefetch(query.next);

  // Rows of the page beyond query.tokens were never written: steps are rounded up, but what they
  // compute there is masked before use. K rows up to 63 belong to the page, so reading is safe.
  const int whole_rows = tile.rows / 4 * 4;
  for (int token = 0; token < query.tokens; token += 4) {
    for (int row = 0; row < whole_rows; row += 4) {
      scores_4x4(queries, row, keys + token * key_dim, key_dim, prefetch, &scores[row][token]);
    }
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    for (int token = 0; token < query.tokens; token += 16) {
      scores_1x16(queries, row, keys + token * key_dim, key_dim, prefetch, &scores[row][token]);
    }
  }
  for (int row = 0; row < tile.rows; ++row) {
    keep[row] = softmax_row(scores[row], query.visible[row], query.scale, tile.max[row],
                            tile.sum[row], scores[row]);
  }
  for (int row = 0; row < whole_rows; row += 4) {
    accumulate_rows<4>(values, head_dim, query.tokens, scores + row, keep + row, prefetch,
                       tile.out + row * head_dim);
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    accumulate_rows<1>(values, head_dim, query.tokens, scores + row, keep + row, prefetch,
                       tile.out + row * head_dim);
  }
}

}  // namespace kvlane
