// From scores to weights of 8 bits, with AVX-512: attention/hack_page.h has the formulas. Steps
// that wait for each other within a row are taken for four rows before the next, whichever pages
// these are of, and all in registers: what is read from memory in a width other than it was written
// in waits until it is in the cache. For such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention/exp2_avx512.h"
#include "attention/hack_codes_avx512_bf16.h"
#include "attention/hack_pages.h"

namespace kvlane::hack {

// Rows that are weighed at once: lanes of 128 bits.
inline constexpr int kRowsAtOnce = 4;

// What is known of four rows when their weights are bytes; a lane of these is a row.
struct Weighing {
  __m512 page_max;
  __m512 greatest;  // of what becomes bytes
  __m512 total;     // of 2^(score - page_max), for V by both
  __m512 codes[2];  // sums of weights: of the two halves, or first of all tokens
};

// Of four registers, in the first four lanes.
template <class Op>
static inline __m512 reduce_rows(const __m512 (&v)[kRowsAtOnce]) {
  return _mm512_zextps128_ps512(reduce_four<Op>(v));
}

// Lane `lane` in all lanes.
static inline __m512 spread(__m512 v, int lane) {
  return _mm512_permutexvar_ps(_mm512_set1_epi32(lane), v);
}

// `scales`: of each row's page, s of the tokens by both. `bytes`: in the order of V's words.
template <bool kBoth>
static inline Weighing weigh_rows(const float* const (&scales)[kRowsAtOnce],
                                  const float (*scores)[kBlockTokens], bool halves,
                                  Prefetch& prefetch, std::uint8_t (*bytes)[kBlockTokens]) {
  constexpr int kVectors = kBlockTokens / kLanes;
  Weighing of;
  __m512 x[kRowsAtOnce][kVectors];
  __m512 most[kRowsAtOnce];
#pragma GCC unroll 4
  for (int j = 0; j < kRowsAtOnce; ++j) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) x[j][i] = _mm512_load_ps(scores[j] + kLanes * i);
    most[j] = _mm512_max_ps(_mm512_max_ps(x[j][0], x[j][1]), _mm512_max_ps(x[j][2], x[j][3]));
  }
  of.page_max = reduce_rows<Greatest>(most);
  __m512 total[kRowsAtOnce];
#pragma GCC unroll 4
  for (int j = 0; j < kRowsAtOnce; ++j) {
    const __m512 max = spread(of.page_max, j);
    total[j] = most[j] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      prefetch.line();
      x[j][i] = exp2_coarse(_mm512_sub_ps(x[j][i], max));
      if constexpr (kBoth) {
        total[j] = _mm512_add_ps(total[j], x[j][i]);
        x[j][i] = _mm512_mul_ps(x[j][i], _mm512_load_ps(scales[j] + kLanes * i));
        most[j] = _mm512_max_ps(most[j], x[j][i]);
      }
    }
  }
  of.greatest = kBoth ? reduce_rows<Greatest>(most) : _mm512_set1_ps(1.0F);
  of.total = kBoth ? reduce_rows<Sum>(total) : _mm512_setzero_ps();
  const __mmask16 some = _mm512_cmp_ps_mask(of.greatest, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512 inverses = _mm512_maskz_div_ps(some, _mm512_set1_ps(255.0F), of.greatest);
  __m512 codes[kRowsAtOnce];  // integers below 2^24, so their sums are exact
#pragma GCC unroll 4
  for (int j = 0; j < kRowsAtOnce; ++j) {
    const __m512 inverse = spread(inverses, j);
    __m512i code[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      code[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x[j][i], inverse));
    }
    const __m512i all = in_value_order(_mm512_packus_epi16(_mm512_packus_epi32(code[0], code[1]),
                                                           _mm512_packus_epi32(code[2], code[3])));
    _mm512_store_si512(bytes[j], all);
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), all, _mm512_set1_epi8(1));
    codes[j] = _mm512_cvtepi32_ps(sums);
  }
  of.codes[0] = reduce_rows<Sum>(codes);
  of.codes[1] = _mm512_setzero_ps();
  if (!halves) return of;
  // Registers 0 and 1 are tokens 0 ... 31, the low half of the bytes.
  for (__m512& sum : codes) sum = _mm512_maskz_mov_ps(0xff00, sum);
  of.codes[1] = reduce_rows<Sum>(codes);
  of.codes[0] = _mm512_sub_ps(of.codes[0], of.codes[1]);
  return of;
}

// What the weights of up to four rows of a tile, from `row` on, are worth beside the maximum of its
// state. That takes in the page's, and its sum these weights. The rows' lanes of `of` begin at
// `lane`, their places in `weights` at `to`.
template <bool kBoth>
static inline void settle_rows(const HackShape& shape, const Weighing& of, int lane,
                               StateTile& tile, int row, hack_pages::Weights& weights, int to) {
  // Twice what a code is less in the operand of products than in values.
  const int middle = (shape.v.bits == 8 ? 256 : 0) - (kBoth ? (1 << shape.v.bits) - 1 : 0);
  const bool halves = !kBoth && shape.v.partition < kBlockTokens;
  const int count = tile.rows - row < kRowsAtOnce ? tile.rows - row : kRowsAtOnce;
  const auto rows = static_cast<__mmask16>((1U << count) - 1U);
  const __m512i lanes =
      _mm512_add_epi32(_mm512_set1_epi32(lane), _mm512_zextsi128_si512(_mm_setr_epi32(0, 1, 2, 3)));
  const auto own = [&](__m512 v) { return _mm512_maskz_permutexvar_ps(rows, lanes, v); };
  const __m512 old_max = _mm512_maskz_loadu_ps(rows, tile.max + row);
  const __m512 page_max = own(of.page_max);
  const __m512 max = _mm512_max_ps(old_max, page_max);
  const __m512 keep = exp2_negative(_mm512_sub_ps(old_max, max));
  const __m512 page_unit = exp2_negative(_mm512_sub_ps(page_max, max));
  const __m512 unit =
      _mm512_div_ps(_mm512_mul_ps(page_unit, own(of.greatest)), _mm512_set1_ps(255.0F));
  __m512 page_total = _mm512_mul_ps(own(of.total), page_unit);
  for (int part = 0; part < (halves ? 2 : 1); ++part) {
    const __m512 codes = own(of.codes[part]);
    const __m512 total = _mm512_mul_ps(codes, unit);
    const __m512 off = _mm512_mul_ps(codes, _mm512_set1_ps(0.5F * static_cast<float>(middle)));
    _mm512_mask_storeu_ps(&weights.shift[part][to], rows, _mm512_mul_ps(off, unit));
    _mm512_mask_storeu_ps(&weights.total[part][to], rows, kBoth ? page_total : total);
    if constexpr (!kBoth) page_total = part == 0 ? total : _mm512_add_ps(page_total, total);
  }
  _mm512_mask_storeu_ps(&weights.keep[to], rows, keep);
  _mm512_mask_storeu_ps(&weights.unit[to], rows, unit);
  const __m512 old_sum = _mm512_maskz_loadu_ps(rows, tile.sum + row);
  _mm512_mask_storeu_ps(tile.max + row, rows, max);
  _mm512_mask_storeu_ps(tile.sum + row, rows, _mm512_fmadd_ps(old_sum, keep, page_total));
}

// s of the tokens of a page's V, by both.
static inline void load_scales(const HackShape& shape, const std::byte* page, float* to) {
  const std::byte* const from = page + shape.layout.v_metadata + 2 * shape.value_dim;
  for (int i = 0; i < kBlockTokens; i += kLanes) {
    _mm512_store_ps(to + i, load_numbers(shape.v.meta, from + 2 * i));
  }
}

// Makes weights of a batch's scores, and brings maxima and sums of its tiles' states up to date.
template <bool kBoth>
static inline void weigh_batch(const HackShape& shape, const hack_pages::Batch& batch,
                               const float (*scores)[kBlockTokens], Prefetch& prefetch,
                               hack_pages::Weights& weights) {
  const bool halves = !kBoth && shape.v.partition < kBlockTokens;
  alignas(64) float of_pages[kRowsAtOnce][kBlockTokens];
  const float* scales[kRowsAtOnce] = {of_pages[0], of_pages[0], of_pages[0], of_pages[0]};
  if (batch.pages == 1) {
    if constexpr (kBoth) load_scales(shape, batch.items[0].page, of_pages[0]);
    for (int row = 0; row < batch.first_row[1]; row += kRowsAtOnce) {
      const Weighing of =
          weigh_rows<kBoth>(scales, scores + row, halves, prefetch, weights.bytes + row);
      settle_rows<kBoth>(shape, of, 0, *batch.items[0].tile, row, weights, row);
    }
    return;
  }
  for (int page = 0; kBoth && page < batch.pages; ++page) {
    load_scales(shape, batch.items[page].page, of_pages[page]);
    for (int row = batch.first_row[page]; row < batch.first_row[page + 1]; ++row) {
      scales[row] = of_pages[page];
    }
  }
  const Weighing of = weigh_rows<kBoth>(scales, scores, halves, prefetch, weights.bytes);
  for (int page = 0; page < batch.pages; ++page) {
    const int first = batch.first_row[page];
    settle_rows<kBoth>(shape, of, first, *batch.items[page].tile, 0, weights, first);
  }
}

}  // namespace kvlane::hack
