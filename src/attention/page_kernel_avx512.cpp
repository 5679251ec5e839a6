// One page with AVX-512 and its BF16 dot product.
//
// Scores: lanes are dimensions, 16 (row, token) pairs at a time, either 4 rows x 4 tokens or 1 row
// x 16 tokens; 16 accumulators are reduced by one butterfly, so every score has the same order of
// summation in both shapes. Output: lanes are channels; two V rows are interleaved to BF16 pairs
// and meet the pair of probabilities, rounded to BF16, broadcast. A page's K and V (16 KB each at
// head_dim 128) come from memory once for all rows of the tile. Bytes: 4 * 64 * head_dim a page.
// Operations: 4 * 64 * head_dim a row.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/exp2_avx512.h"
#include "attention/page_kernel.h"

namespace kvlane {
namespace {

// Asks for the next memory a few lines at a time, so that it comes while the kernel computes and
// never more than the core can have under way.
class Prefetch {
 public:
  explicit Prefetch(const PageQuery& query)
      : at_(reinterpret_cast<const char*>(query.next.data())), end_(at_ + query.next.size()) {}

  void lines(int count) {
    for (int i = 0; i < count && at_ < end_; ++i, at_ += 64) _mm_prefetch(at_, _MM_HINT_T1);
  }

 private:
  const char* at_;
  const char* end_;
};

// 32 BF16 values from `p`, the last vector of a row cut by `mask`.
inline __m512bh load_bf16(const std::uint16_t* p, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
}

// Elements of the 32-wide step that starts at `first`.
inline __mmask32 step_mask(int head_dim, int first) {
  return head_dim - first >= 32 ? 0xffffffffU : (1U << (head_dim - first)) - 1U;
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
inline void scores_4x4(const std::uint16_t* const* q, int parts, const std::uint16_t* keys,
                       int head_dim, Prefetch& prefetch, float* scores) {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_setzero_ps();
  for (int part = 0; part < parts; ++part) {
    for (int i = 0; i < head_dim; i += 32) {
      const __mmask32 mask = step_mask(head_dim, i);
      prefetch.lines(4);
      __m512bh key[4];
      for (int token = 0; token < 4; ++token) {
        key[token] = load_bf16(keys + token * head_dim + i, mask);
      }
      for (int row = 0; row < 4; ++row) {
        const __m512bh query = load_bf16(q[row] + part * head_dim + i, mask);
        for (int token = 0; token < 4; ++token) {
          __m512& a = acc[4 * token + row];  // transposed, as reduce16 wants it
          a = _mm512_dpbf16_ps(a, query, key[token]);
        }
      }
    }
  }
  const __m512 sums = reduce16(acc);
  _mm_storeu_ps(scores, _mm512_castps512_ps128(sums));
  _mm_storeu_ps(scores + kBlockTokens, _mm512_extractf32x4_ps(sums, 1));
  _mm_storeu_ps(scores + 2 * kBlockTokens, _mm512_extractf32x4_ps(sums, 2));
  _mm_storeu_ps(scores + 3 * kBlockTokens, _mm512_extractf32x4_ps(sums, 3));
}

// Scores of 1 row x 16 tokens.
inline void scores_1x16(const std::uint16_t* q, int parts, const std::uint16_t* keys, int head_dim,
                        Prefetch& prefetch, float* scores) {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_setzero_ps();
  for (int part = 0; part < parts; ++part) {
    for (int i = 0; i < head_dim; i += 32) {
      const __mmask32 mask = step_mask(head_dim, i);
      prefetch.lines(16);
      const __m512bh query = load_bf16(q + part * head_dim + i, mask);
      for (int token = 0; token < 16; ++token) {
        __m512& a = acc[4 * (token & 3) + (token >> 2)];
        a = _mm512_dpbf16_ps(a, query, load_bf16(keys + token * head_dim + i, mask));
      }
    }
  }
  _mm512_storeu_ps(scores, reduce16(acc));
}

// Bits of the visible tokens among the 16 from `first` on.
inline __mmask16 visible_mask(int visible, int first) {
  const int count = visible - first;
  if (count >= 16) return 0xffff;
  return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << count) - 1U);
}

// Scores of a row to probabilities (BF16, 0 where invisible); updates max and sum. Returns the
// factor for what was accumulated before.
inline float softmax_row(const float* scores, int visible, float scale, float& max, float& sum,
                         std::uint16_t* weights) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 scaled[4];
  __m512 top = _mm512_set1_ps(max);
  for (int i = 0; i < 4; ++i) {
    const __mmask16 mask = visible_mask(visible, 16 * i);
    scaled[i] =
        _mm512_mask_mul_ps(lowest, mask, _mm512_loadu_ps(scores + 16 * i), _mm512_set1_ps(scale));
    top = _mm512_max_ps(top, scaled[i]);
  }
  const float new_max = _mm512_reduce_max_ps(top);
  __m512 total = _mm512_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    const __m512 weight =
        _mm512_maskz_mov_ps(visible_mask(visible, 16 * i),
                            exp2_negative(_mm512_sub_ps(scaled[i], _mm512_set1_ps(new_max))));
    total = _mm512_add_ps(total, weight);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + 16 * i),
                        (__m256i)_mm512_cvtneps_pbh(weight));
  }
  const float keep =
      _mm512_cvtss_f32(exp2_negative(_mm512_sub_ps(_mm512_set1_ps(max), _mm512_set1_ps(new_max))));
  max = new_max;
  sum = sum * keep + _mm512_reduce_add_ps(total);
  return keep;
}

// out[channel ... channel + 31] of kRows rows: out * keep + weights x V.
template <int kRows>
inline void accumulate_values(const std::uint16_t* values, int head_dim, int channel, int tokens,
                              const std::uint16_t (*weights)[kBlockTokens], const float* keep,
                              Prefetch& prefetch, float* out) {
  const __mmask32 mask = step_mask(head_dim, channel);
  __m512 low[kRows];
  __m512 high[kRows];
  for (int row = 0; row < kRows; ++row) low[row] = high[row] = _mm512_setzero_ps();
  for (int token = 0; token < tokens; token += 2) {
    const std::uint16_t* value = values + token * head_dim + channel;
    prefetch.lines(2);
    const __m512i even = _mm512_maskz_loadu_epi16(mask, value);
    // A last odd token has no partner: the row after it was never written.
    const __m512i odd = _mm512_maskz_loadu_epi16(token + 1 < tokens ? mask : 0U, value + head_dim);
    const __m512bh pairs_low = (__m512bh)_mm512_unpacklo_epi16(even, odd);
    const __m512bh pairs_high = (__m512bh)_mm512_unpackhi_epi16(even, odd);
    for (int row = 0; row < kRows; ++row) {
      int pair;
      __builtin_memcpy(&pair, &weights[row][token], sizeof(pair));
      const __m512bh weight = (__m512bh)_mm512_set1_epi32(pair);
      low[row] = _mm512_dpbf16_ps(low[row], weight, pairs_low);
      high[row] = _mm512_dpbf16_ps(high[row], weight, pairs_high);
    }
  }
  // unpack works inside 128-bit lanes: low holds channels 0-3, 8-11, 16-19, 24-27, high the others.
  const __m512i first_half =
      _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second_half =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int row = 0; row < kRows; ++row) {
    float* o = out + row * head_dim + channel;
    const __m512 factor = _mm512_set1_ps(keep[row]);
    const auto mask_low = static_cast<__mmask16>(mask);
    const auto mask_high = static_cast<__mmask16>(mask >> 16);
    const __m512 a = _mm512_permutex2var_ps(low[row], first_half, high[row]);
    const __m512 b = _mm512_permutex2var_ps(low[row], second_half, high[row]);
    _mm512_mask_storeu_ps(o, mask_low,
                          _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask_low, o), factor, a));
    _mm512_mask_storeu_ps(o + 16, mask_high,
                          _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask_high, o + 16), factor, b));
  }
}

}  // namespace

void attend_page_avx512(const PageQuery& query, const std::uint16_t* page, StateTile& tile) {
  const int head_dim = tile.head_dim;
  const std::uint16_t* keys = page;
  const std::uint16_t* values = page + kBlockTokens * head_dim;
  alignas(64) float scores[kTileRows][kBlockTokens];
  alignas(64) std::uint16_t weights[kTileRows][kBlockTokens];
  float keep[kTileRows];
  Prefetch prefetch(query);

  // Rows of the page beyond query.tokens were never written: steps are rounded up, but what they
  // compute there is masked before use. K rows up to 63 belong to the page, so reading is safe.
  const int whole_rows = tile.rows / 4 * 4;
  for (int token = 0; token < query.tokens; token += 4) {
    for (int row = 0; row < whole_rows; row += 4) {
      scores_4x4(query.q + row, query.parts, keys + token * head_dim, head_dim, prefetch,
                 &scores[row][token]);
    }
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    for (int token = 0; token < query.tokens; token += 16) {
      scores_1x16(query.q[row], query.parts, keys + token * head_dim, head_dim, prefetch,
                  &scores[row][token]);
    }
  }
  for (int row = 0; row < tile.rows; ++row) {
    keep[row] = softmax_row(scores[row], query.visible[row], query.scale, tile.max[row],
                            tile.sum[row], weights[row]);
  }
  for (int channel = 0; channel < head_dim; channel += 32) {
    for (int row = 0; row < whole_rows; row += 4) {
      accumulate_values<4>(values, head_dim, channel, query.tokens, weights + row, keep + row,
                           prefetch, tile.out + row * head_dim);
    }
    for (int row = whole_rows; row < tile.rows; ++row) {
      accumulate_values<1>(values, head_dim, channel, query.tokens, weights + row, keep + row,
                           prefetch, tile.out + row * head_dim);
    }
  }
}

}  // namespace kvlane
