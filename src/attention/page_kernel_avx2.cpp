// One page with AVX2, in FP32: the way of page_kernel_avx512.cpp in halves of its vectors. BF16
// widens by a shift or a mask, 16 values at a time, into those at even and those at odd places.
//
// Scores: lanes are dimensions, 8 (row, token) pairs at a time, either 4 rows x 2 tokens or 1 row x
// 8 tokens; 8 accumulators are reduced by one butterfly, so every score has the same order of
// summation in both shapes. Output: lanes are channels, tokens are added one by one. Bytes: 4 * 64
// * head_dim a page. Operations: 4 * 64 * head_dim a row.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/lanes_avx2.h"
#include "attention/page_kernel.h"
#include "attention/prefetch.h"
#include "attention/softmax_avx2.h"

namespace kvlane {
namespace {

constexpr int kLanes = 8;
constexpr int kStep = 2 * kLanes;  // values that are widened together

// 16 BF16 values as two vectors of floats: those at even and those at odd places. Of a part of
// them, which is even, others are not read and become 0.
struct Pair {
  __m256 even;
  __m256 odd;
};
template <bool kWhole>
inline Pair widen(const std::uint16_t* p, int count) {
  const __m256i both =
      kWhole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
             : _mm256_maskload_epi32(reinterpret_cast<const int*>(p), first_lanes(count / 2));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)))};
}

template <bool kWhole>
struct Whole {
  static constexpr bool kValue = kWhole;
};

// body(first, whole) for every 16 channels: `whole` says, while compiling, whether there are 16.
template <class Body>
[[gnu::always_inline]] inline void for_steps(int head_dim, const Body& body) {
  int i = 0;
  for (; i + kStep <= head_dim; i += kStep) body(i, Whole<true>{});
  if (i < head_dim) body(i, Whole<false>{});
}

// Rows of queries, widened: for every 16 dimensions those at even and those at odd places.
struct Queries {
  alignas(32) float of[kTileRows][kTileHeadDimMax / kStep][2][kLanes];
};

// A query's parts add up without rounding: they are those of a value in FP32.
inline void widen_queries(const PageQuery& query, int rows, Queries& queries) {
  const int key_dim = query.key_dim;
  for (int row = 0; row < rows; ++row) {
    for_steps(key_dim, [&](int i, auto whole) {
      Pair sum = widen<decltype(whole)::kValue>(query.q[row] + i, key_dim - i);
      if (query.parts == 2) {
        const std::uint16_t* const second = query.q[row] + query.part_stride + i;
        const Pair rest = widen<decltype(whole)::kValue>(second, key_dim - i);
        sum.even = _mm256_add_ps(sum.even, rest.even);
        sum.odd = _mm256_add_ps(sum.odd, rest.odd);
      }
      _mm256_store_ps(queries.of[row][i / kStep][0], sum.even);
      _mm256_store_ps(queries.of[row][i / kStep][1], sum.odd);
    });
  }
}

// Sums of the lanes of 8 vectors, in their order.
inline __m256 reduce8(const __m256 (&acc)[8]) {
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(acc[0], acc[1]), _mm256_hadd_ps(acc[2], acc[3]));
  const __m256 high =
      _mm256_hadd_ps(_mm256_hadd_ps(acc[4], acc[5]), _mm256_hadd_ps(acc[6], acc[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31));
}

// Scores of kRows rows x kTokens tokens; those of a row are neighbours.
template <int kRows, int kTokens>
inline void score(const Queries& queries, int first, const std::uint16_t* keys, int head_dim,
                  Prefetch& prefetch, float* scores) {
  static_assert(kRows * kTokens == kLanes);
  __m256 acc[kLanes];
  for (__m256& a : acc) a = _mm256_setzero_ps();
  for_steps(head_dim, [&](int i, auto whole) {
#pragma GCC unroll 4
    for (int token = 0; token < kTokens; token += 2) {
      const std::uint16_t* const at = keys + token * head_dim + i;
      const Pair key[2] = {widen<decltype(whole)::kValue>(at, head_dim - i),
                           widen<decltype(whole)::kValue>(at + head_dim, head_dim - i)};
      prefetch.line();
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const __m256 even = _mm256_load_ps(queries.of[first + row][i / kStep][0]);
        const __m256 odd = _mm256_load_ps(queries.of[first + row][i / kStep][1]);
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          __m256& a = acc[row * kTokens + token + j];
          a = _mm256_fmadd_ps(even, key[j].even, a);
          a = _mm256_fmadd_ps(odd, key[j].odd, a);
        }
      }
    }
  });
  alignas(32) float sums[kRows][kTokens];
  _mm256_store_ps(sums[0], reduce8(acc));
  for (int row = 0; row < kRows; ++row) {
    __builtin_memcpy(scores + row * kBlockTokens, sums[row], sizeof(sums[row]));
  }
}

// `to` * keep + x, of the first `count` of 8 channels if not kWhole.
template <bool kWhole>
inline void add_channels(float* to, __m256 keep, __m256 x, int count) {
  if constexpr (kWhole) {
    _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_loadu_ps(to), keep, x));
  } else {
    const __m256i mask = first_lanes(count);
    _mm256_maskstore_ps(to, mask, _mm256_fmadd_ps(_mm256_maskload_ps(to, mask), keep, x));
  }
}

// 16 * kWide channels of kRows rows, or the last ones: out * keep + weights x V.
template <int kRows, int kWide, bool kWhole>
inline void accumulate_values(const std::uint16_t* values, int head_dim, int channel, int tokens,
                              const float (*weights)[kBlockTokens], const float* keep,
                              Prefetch& prefetch, float* out) {
  Pair sum[kRows][kWide];
  for (auto& row : sum) {
    for (Pair& pair : row) pair = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  }
  for (int token = 0; token < tokens; ++token) {
    Pair value[kWide];
#pragma GCC unroll 4
    for (int i = 0; i < kWide; ++i) {
      const int at = channel + kStep * i;
      value[i] = widen<kWhole>(values + token * head_dim + at, head_dim - at);
      if (i % 2 == 0) prefetch.line();
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const __m256 weight = _mm256_broadcast_ss(&weights[row][token]);
#pragma GCC unroll 4
      for (int i = 0; i < kWide; ++i) {
        sum[row][i].even = _mm256_fmadd_ps(value[i].even, weight, sum[row][i].even);
        sum[row][i].odd = _mm256_fmadd_ps(value[i].odd, weight, sum[row][i].odd);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    const __m256 factor = _mm256_set1_ps(keep[row]);
    for (int i = 0; i < kWide; ++i) {
      const int at = channel + kStep * i;
      float* const o = out + row * head_dim + at;
      const __m256 low = _mm256_unpacklo_ps(sum[row][i].even, sum[row][i].odd);
      const __m256 high = _mm256_unpackhi_ps(sum[row][i].even, sum[row][i].odd);
      add_channels<kWhole>(o, factor, _mm256_permute2f128_ps(low, high, 0x20), head_dim - at);
      add_channels<kWhole>(o + kLanes, factor, _mm256_permute2f128_ps(low, high, 0x31),
                           head_dim - at - kLanes);
    }
  }
}

// All channels of kRows rows, as many at a time as accumulators are left for.
template <int kRows>
inline void accumulate_rows(const std::uint16_t* values, int head_dim, int tokens,
                            const float (*weights)[kBlockTokens], const float* keep,
                            Prefetch& prefetch, float* out) {
  constexpr int kWide = kRows == 1 ? 4 : 1;
  int channel = 0;
  for (; channel + kStep * kWide <= head_dim; channel += kStep * kWide) {
    accumulate_values<kRows, kWide, true>(values, head_dim, channel, tokens, weights, keep,
                                          prefetch, out);
  }
  for (; channel + kStep <= head_dim; channel += kStep) {
    accumulate_values<kRows, 1, true>(values, head_dim, channel, tokens, weights, keep, prefetch,
                                      out);
  }
  if (channel < head_dim) {
    accumulate_values<kRows, 1, false>(values, head_dim, channel, tokens, weights, keep, prefetch,
                                       out);
  }
}

}  // namespace

void attend_page_avx2(const PageQuery& query, const std::uint16_t* page, StateTile& tile) {
  const int head_dim = tile.head_dim;
  // Masks are of pairs of values. No model has such heads.
  const int key_dim = query.key_dim;
  if (key_dim % 2 != 0 || head_dim % 2 != 0) return attend_page_scalar(query, page, tile);
  const std::uint16_t* keys = page;
  const std::uint16_t* values = page + kBlockTokens * key_dim;
  alignas(32) float scores[kTileRows][kBlockTokens];  // then probabilities
  float keep[kTileRows];
  Queries queries;
  widen_queries(query, tile.rows, queries);
  Prefetch prefetch(query.next);

  // Rows of the page beyond query.tokens were never written: steps are rounded up, but what they
  // compute there is masked before use. K rows up to 63 belong to the page, so reading is safe.
  const int whole_rows = tile.rows / 4 * 4;
  for (int token = 0; token < query.tokens; token += 2) {
    for (int row = 0; row < whole_rows; row += 4) {
      score<4, 2>(queries, row, keys + token * key_dim, key_dim, prefetch, &scores[row][token]);
    }
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    for (int token = 0; token < query.tokens; token += kLanes) {
      score<1, 8>(queries, row, keys + token * key_dim, key_dim, prefetch, &scores[row][token]);
    }
  }
  for (int row = 0; row < tile.rows; ++row) {
    keep[row] =
        softmax_row(scores[row], query.visible[row], query.scale, tile.max[row], tile.sum[row]);
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
