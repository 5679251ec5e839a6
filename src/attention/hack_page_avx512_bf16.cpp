// Attention on codes with AVX-512 and its dot product of 8-bit integers.
//
// Scores: lanes are tokens. A vector of words is 16 tokens times 4 bytes of 1, 2 or 4 registers; a
// shift and a mask make a register the operand of VPDPBUSD, whose other one is four codes of a
// query, broadcast. Output: lanes are channels, the other operand is four weights, broadcast. So no
// sum crosses lanes, and what codes cost beyond the products is shared by the rows of a step, 4 or
// 1. Operations of a page, head_dim d and b bits a code: per row 32 d / 16 products; per step of
// rows 2 d (8 / b) shifts and masks; per row and partition 4 x 4 for m and s of 64 tokens, and 5
// for m and s of 16 channels.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/exp2_avx512.h"
#include "attention/hack_codes_avx512_bf16.h"
#include "attention/hack_pages.h"

namespace kvlane {
namespace {

using hack::Affine;
using hack::Axis;
using hack::broadcast;
using hack::codes_of;
using hack::Greatest;
using hack::in_value_order;
using hack::kLanes;
using hack::load_affine;
using hack::load_numbers;
using hack::multiply_keys;
using hack::reduce;
using hack::Sum;
using hack_pages::Scores;
using hack_pages::Weights;

// --- the query ----------------------------------------------------------------------------------

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  const int partition = shape.k.axis == Axis::kBoth ? d : shape.k.partition;
  const float middle = static_cast<float>((1 << shape.k.bits) - 1) / 2;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    load_hack_query_avx512(shape, query, row, q);
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < d; i += kLanes) {
      most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_load_ps(q + i)));
    }
    const float greatest = _mm512_reduce_max_ps(most);
    const float scale = greatest / 127.0F;
    const __m512 inverse = _mm512_set1_ps(greatest > 0 ? 127.0F / greatest : 0.0F);
    to.scale[row] = scale;
    for (int first = 0, g = 0; first < d; first += partition, ++g) {
      const int end = d - first < partition ? d : first + partition;
      __m512 sum = _mm512_setzero_ps();
      __m512i codes = _mm512_setzero_si512();
      for (int i = first; i < end; i += kLanes) {
        const __m512 x = _mm512_load_ps(q + i);
        const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        _mm_store_si128(reinterpret_cast<__m128i*>(&to.codes[row][i]), _mm512_cvtepi32_epi8(code));
        sum = _mm512_add_ps(sum, x);
        codes = _mm512_add_epi32(codes, code);
      }
      to.sum[row][g] = _mm512_reduce_add_ps(sum);
      to.centre[row][g] = middle * ((shape.k.axis == Axis::kBoth ? 0.0F : to.sum[row][g]) -
                                    scale * static_cast<float>(_mm512_reduce_add_epi32(codes)));
    }
  }
}

// --- scores -------------------------------------------------------------------------------------

// What all tokens of a page have in common: each query's product with m of the channels.
inline void find_bases(const HackShape& shape, const HackQuery& query, int rows,
                       const std::byte* page, float* bases) {
  __m512 m[kTileHeadDimMax / kLanes];
  const int parts = shape.key_dim / kLanes;
  for (int i = 0; i < parts; ++i) {
    m[i] = load_numbers(shape.k.meta, page + shape.layout.k_metadata + 2 * kLanes * i);
  }
  __m512 sums[kTileRows];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < parts; ++i) {
      const __m512 q = _mm512_load_ps(query.values[row] + kLanes * i);
      sums[row] = _mm512_fmadd_ps(q, m[i], sums[row]);
    }
  }
  reduce<Sum>(sums, rows, bases);
}

// Of kRows rows from `row` on and kGroups times 16 tokens from `token` on.
template <int kBits, bool kBoth, int kRows, int kGroups>
inline void score_rows(const HackShape& shape, const HackQuery& query, int row,
                       const std::byte* page, int token, Prefetch& prefetch, const float* bases,
                       float (*scores)[kBlockTokens]) {
  const int d = shape.key_dim;
  const int partition = kBoth ? d : shape.k.partition;
  __m512 sums[kRows][kGroups];
  for (int j = 0; j < kRows; ++j) {
    for (auto& sum : sums[j]) sum = _mm512_set1_ps(kBoth ? bases[row + j] : 0.0F);
  }
  const std::byte* words = page + 4 * token;
  const std::byte* entries =
      page + shape.layout.k_metadata + (kBoth ? 2 * d + 2 * token : int{hack::kEntryBytes} * token);
  for (int first = 0, g = 0; first < d; first += partition, ++g) {
    const int end = d - first < partition ? d : first + partition;
    __m512i dots[kRows][kGroups];
    words = multiply_keys<kBits>(words, query, row, first, end, prefetch, dots);
    for (int group = 0; group < kGroups; ++group) {
      Affine affine;
      if constexpr (kBoth) {
        affine.s = load_numbers(shape.k.meta, entries + 32 * group);
      } else {
        affine = load_affine(shape.k.meta, entries + 64 * group);
      }
      for (int j = 0; j < kRows; ++j) {
        const __m512 product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[j][group]),
                                               _mm512_set1_ps(query.scale[row + j]),
                                               _mm512_set1_ps(query.centre[row + j][g]));
        __m512& sum = sums[j][group];
        if constexpr (!kBoth) {
          sum = _mm512_fmadd_ps(affine.m, _mm512_set1_ps(query.sum[row + j][g]), sum);
        }
        sum = _mm512_fmadd_ps(affine.s, product, sum);
      }
    }
    entries += hack::kEntryBytes * kBlockTokens;
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      _mm512_store_ps(&scores[row + j][token + kLanes * group], sums[j][group]);
    }
  }
}

// --- weights ------------------------------------------------------------------------------------

// s of V's tokens, as weigh() wants them.
struct Scales {
  alignas(64) float of_token[kBlockTokens];
};
inline void load_scales(const HackShape& shape, const std::byte* page, Scales& scales) {
  for (int i = 0; i < kBlockTokens; i += kLanes) {
    const std::byte* const from = page + shape.layout.v_metadata + 2 * (shape.value_dim + i);
    _mm512_store_ps(scales.of_token + i, load_numbers(shape.v.meta, from));
  }
}

// In the order of V's words. All in registers: a load that spans several stores waits for them.
inline __m512i bytes_of(const float* x, __m512 inverse) {
  __m512i code[4];
  for (int i = 0; i < 4; ++i) {
    code[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(x + kLanes * i), inverse));
  }
  const __m512i packed = _mm512_packus_epi16(_mm512_packus_epi32(code[0], code[1]),
                                             _mm512_packus_epi32(code[2], code[3]));
  return in_value_order(packed);
}

// What is known of rows before their weights are bytes; a lane of these is a row.
struct Weighing {
  alignas(64) float page_max[kTileRows];
  alignas(64) float greatest[kTileRows];  // of what becomes bytes
  alignas(64) float total[kTileRows];     // of 2^(score - page_max)
  alignas(64) float codes[2][kTileRows];  // their sums: of the two halves, or first of all tokens
};

// Scores become 2^(score - page_max), times s of the token by both. Steps that wait for each other
// within a row are taken for all rows before the next.
template <bool kBoth>
inline void power_rows(float (*scores)[kBlockTokens], int rows, const Scales& scales,
                       Prefetch& prefetch, Weighing& of) {
  __m512 most[kTileRows];
  __m512 total[kTileRows];
  for (int row = 0; row < kTileRows; ++row) most[row] = total[row] = _mm512_setzero_ps();
  for (int row = 0; row < rows; ++row) {
    const float* const from = scores[row];
    most[row] = _mm512_max_ps(
        _mm512_max_ps(_mm512_load_ps(from), _mm512_load_ps(from + kLanes)),
        _mm512_max_ps(_mm512_load_ps(from + 2 * kLanes), _mm512_load_ps(from + 3 * kLanes)));
  }
  reduce<Greatest>(most, rows, of.page_max);
  for (int row = 0; row < rows; ++row) {
    const __m512 max = _mm512_set1_ps(of.page_max[row]);
    most[row] = kBoth ? _mm512_setzero_ps() : _mm512_set1_ps(1.0F);
    for (int i = 0; i < kBlockTokens; i += kLanes) {
      // With those of the other stages, more than the lines of a page.
      prefetch.line();
      prefetch.line();
      __m512 x = exp2_coarse(_mm512_sub_ps(_mm512_load_ps(scores[row] + i), max));
      if constexpr (kBoth) {
        total[row] = _mm512_add_ps(total[row], x);
        x = _mm512_mul_ps(x, _mm512_load_ps(scales.of_token + i));
        most[row] = _mm512_max_ps(most[row], x);
      }
      _mm512_store_ps(scores[row] + i, x);
    }
  }
  reduce<Greatest>(most, rows, of.greatest);
  if constexpr (kBoth) reduce<Sum>(total, rows, of.total);
}

inline void code_rows(const float (*scores)[kBlockTokens], int rows, bool halves, Weighing& of,
                      Weights& weights) {
  const __m512 greatest = _mm512_load_ps(of.greatest);
  const __mmask16 some = _mm512_cmp_ps_mask(greatest, _mm512_setzero_ps(), _CMP_GT_OQ);
  alignas(64) float inverse[kTileRows];
  _mm512_store_ps(inverse, _mm512_maskz_div_ps(some, _mm512_set1_ps(255.0F), greatest));
  __m512 codes[kTileRows];  // integers below 2^24, so their sums are exact
  for (__m512& x : codes) x = _mm512_setzero_ps();
  for (int row = 0; row < rows; ++row) {
    const __m512i bytes = bytes_of(scores[row], _mm512_set1_ps(inverse[row]));
    _mm512_store_si512(weights.bytes[row], bytes);
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_set1_epi8(1));
    codes[row] = _mm512_cvtepi32_ps(sums);
  }
  reduce<Sum>(codes, rows, of.codes[0]);
  if (!halves) return;
  // Registers 0 and 1 are tokens 0 ... 31, the low half of the bytes.
  for (int row = 0; row < rows; ++row) codes[row] = _mm512_maskz_mov_ps(0xff00, codes[row]);
  reduce<Sum>(codes, rows, of.codes[1]);
  for (int row = 0; row < rows; ++row) of.codes[0][row] -= of.codes[1][row];
}

template <bool kBoth>
inline void weigh_rows(const HackShape& shape, const HackItem& item, float (*scores)[kBlockTokens],
                       Prefetch& prefetch, Weights& weights) {
  // Twice what a code is less in the operand of products than in values.
  const int middle = (shape.v.bits == 8 ? 256 : 0) - (kBoth ? (1 << shape.v.bits) - 1 : 0);
  const bool halves = !kBoth && shape.v.partition < kBlockTokens;
  StateTile& tile = *item.tile;
  Scales scales = {};
  if constexpr (kBoth) load_scales(shape, item.page, scales);
  Weighing of;
  // Rows beyond the tile's are computed on, too: with numbers, whatever they are.
  for (float& x : of.page_max) x = 0;
  for (float& x : of.greatest) x = 0;
  for (float& x : of.total) x = 0;
  power_rows<kBoth>(scores, tile.rows, scales, prefetch, of);
  code_rows(scores, tile.rows, halves, of, weights);
  const auto rows = static_cast<__mmask16>((1U << tile.rows) - 1U);
  const __m512 old_max = _mm512_maskz_loadu_ps(rows, tile.max);
  const __m512 page_max = _mm512_load_ps(of.page_max);
  const __m512 max = _mm512_max_ps(old_max, page_max);
  const __m512 keep = exp2_negative(_mm512_sub_ps(old_max, max));
  const __m512 page_unit = exp2_negative(_mm512_sub_ps(page_max, max));
  const __m512 unit =
      _mm512_div_ps(_mm512_mul_ps(page_unit, _mm512_load_ps(of.greatest)), _mm512_set1_ps(255.0F));
  __m512 page_total = _mm512_mul_ps(_mm512_load_ps(of.total), page_unit);
  for (int part = 0; part < (halves ? 2 : 1); ++part) {
    const __m512 codes = _mm512_maskz_loadu_ps(rows, of.codes[part]);
    const __m512 total = _mm512_mul_ps(codes, unit);
    const __m512 off = _mm512_mul_ps(codes, _mm512_set1_ps(0.5F * static_cast<float>(middle)));
    _mm512_store_ps(weights.shift[part], _mm512_mul_ps(off, unit));
    _mm512_store_ps(weights.total[part], kBoth ? page_total : total);
    if constexpr (!kBoth) page_total = part == 0 ? total : _mm512_add_ps(page_total, total);
  }
  _mm512_store_ps(weights.keep, keep);
  _mm512_store_ps(weights.unit, unit);
  const __m512 old_sum = _mm512_maskz_loadu_ps(rows, tile.sum);
  _mm512_mask_storeu_ps(tile.max, rows, max);
  _mm512_mask_storeu_ps(tile.sum, rows, _mm512_fmadd_ps(old_sum, keep, page_total));
}

// --- output -------------------------------------------------------------------------------------

// out[channel ... channel + 16 kGroups - 1] of kRows rows: out * keep + weights x V. kParts
// partitions of tokens, 1 or 2.
template <int kBits, bool kBoth, int kRows, int kParts, int kGroups>
inline void add_values(const HackShape& shape, const Weights& weights, int row,
                       const std::byte* page, int channel, Prefetch& prefetch, float* out) {
  constexpr int kRegisters = 8 / kBits;
  const int d = shape.value_dim;
  const std::byte* words = page + shape.layout.v_codes + 4 * channel;
  __m512i dots[kRows][kParts][kGroups];
  for (auto& of_row : dots) {
    for (auto& of_part : of_row) {
      for (auto& dot : of_part) dot = _mm512_setzero_si512();
    }
  }
  for (int first = 0; first < hack::kValueRegisters; first += kRegisters) {
    for (int c = 0; c < hack::kValueClasses; ++c, words += 4 * d) {
      __m512i word[kGroups];
      for (int group = 0; group < kGroups; ++group) {
        word[group] = _mm512_loadu_si512(words + 64 * group);
        prefetch.line();
      }
      for (int i = 0; i < kRegisters; ++i) {
        const int r = first + i;
        const int part = kParts == 1 ? 0 : r / 2;
        __m512i codes[kGroups];
        for (int group = 0; group < kGroups; ++group) {
          codes[group] = codes_of<kBits>(word[group], i);
          // The product's second operand is signed.
          if (kBits == 8) codes[group] = _mm512_xor_si512(codes[group], _mm512_set1_epi8(-128));
        }
        for (int j = 0; j < kRows; ++j) {
          const __m512i four = broadcast(weights.bytes[row + j] + 16 * r + 4 * c);
          for (int group = 0; group < kGroups; ++group) {
            __m512i& dot = dots[j][part][group];
            dot = _mm512_dpbusd_epi32(dot, four, codes[group]);
          }
        }
      }
    }
  }
  prefetch.line();
  const std::byte* const metadata = page + shape.layout.v_metadata;
  for (int group = 0; group < kGroups; ++group) {
    const int at = channel + kLanes * group;
    for (int part = 0; part < kParts; ++part) {
      Affine affine;
      if constexpr (kBoth) {
        affine.m = load_numbers(shape.v.meta, metadata + 2 * at);
      } else {
        affine = load_affine(shape.v.meta, metadata + hack::kEntryBytes * (part * d + at));
      }
      for (int j = 0; j < kRows; ++j) {
        const __m512 product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[j][part][group]),
                                               _mm512_set1_ps(weights.unit[row + j]),
                                               _mm512_set1_ps(weights.shift[part][row + j]));
        __m512 sum = _mm512_loadu_ps(out + j * d + at);
        if (part == 0) sum = _mm512_mul_ps(sum, _mm512_set1_ps(weights.keep[row + j]));
        sum = _mm512_fmadd_ps(affine.m, _mm512_set1_ps(weights.total[part][row + j]), sum);
        sum = kBoth ? _mm512_add_ps(product, sum) : _mm512_fmadd_ps(affine.s, product, sum);
        _mm512_storeu_ps(out + j * d + at, sum);
      }
    }
  }
}

// --- a page -------------------------------------------------------------------------------------

template <int kBits, bool kBoth, int kParts, int kGroups>
inline void add_channels(const HackShape& shape, const Weights& weights, const std::byte* page,
                         int channel, Prefetch& prefetch, StateTile& tile) {
  const int d = shape.value_dim;
  const int whole_rows = tile.rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) {
    add_values<kBits, kBoth, 4, kParts, kGroups>(shape, weights, row, page, channel, prefetch,
                                                 tile.out + row * d);
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    add_values<kBits, kBoth, 1, kParts, kGroups>(shape, weights, row, page, channel, prefetch,
                                                 tile.out + row * d);
  }
}

// See attention/hack_pages.h.
struct Avx512 {
  template <int kBits, bool kBoth>
  static void score(const HackShape& shape, const HackQuery& query, int rows, const std::byte* page,
                    Prefetch& prefetch, Scores& scores) {
    alignas(64) float bases[kTileRows];
    if (kBoth) find_bases(shape, query, rows, page, bases);
    const int whole_rows = rows / 4 * 4;
    for (int row = 0; row < whole_rows; row += 4) {
      for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
        score_rows<kBits, kBoth, 4, 2>(shape, query, row, page, token, prefetch, bases, scores);
      }
    }
    for (int row = whole_rows; row < rows; ++row) {
      score_rows<kBits, kBoth, 1, 4>(shape, query, row, page, 0, prefetch, bases, scores);
    }
  }

  template <bool kBoth>
  static void weigh(const HackShape& shape, const HackItem& item, Scores& scores,
                    Prefetch& prefetch, Weights& weights) {
    weigh_rows<kBoth>(shape, item, scores, prefetch, weights);
  }

  template <int kBits, bool kBoth, int kParts>
  static void add(const HackShape& shape, const Weights& weights, const std::byte* page,
                  Prefetch& prefetch, StateTile& tile) {
    int channel = 0;
    for (; channel + 2 * kLanes <= shape.value_dim; channel += 2 * kLanes) {
      add_channels<kBits, kBoth, kParts, 2>(shape, weights, page, channel, prefetch, tile);
    }
    if (channel < shape.value_dim) {
      add_channels<kBits, kBoth, kParts, 1>(shape, weights, page, channel, prefetch, tile);
    }
  }
};

}  // namespace

HackKernel hack_kernel_avx512_bf16() { return {prepare, hack_pages::attend<Avx512>}; }

}  // namespace kvlane
