// Attention on codes with AVX2 and its products of unsigned and signed bytes.
//
// The way of hack_page_avx512_bf16.cpp in halves of its vectors: scores with tokens in lanes,
// output with channels in lanes, no sum across lanes, 4 rows or 1 at a time; the products are those
// of hack_products_avx2.h. Operations of a page, head_dim d and 2 or 4 bits a code: per row 32 d /
// 8 products and as many additions; per step of rows up to 4 d (8 / b) shifts and masks; per row
// and partition 8 x 4 for m and s of 64 tokens, and 5 for m and s of 8 channels.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/exp2_avx2.h"
#include "attention/hack_pages.h"
#include "attention/hack_products_avx2.h"
#include "attention/lanes_avx2.h"
#include "quant/hack_avx2.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

using hack::Axis;
using hack::avx2::Affine;
using hack::avx2::kLanes;
using hack::avx2::load_affine;
using hack::avx2::load_numbers;
using hack_pages::Batch;
using hack_pages::Weights;
using hack_products::Greatest;
using hack_products::in_value_order;
using hack_products::kQueryMost;
using hack_products::kWeightMost;
using hack_products::reduce;
using hack_products::Sum;
using hack_products::sums_of_bytes;

// --- the query ----------------------------------------------------------------------------------

float greatest_magnitude(const float* q, int d) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  __m256 most = _mm256_setzero_ps();
  for (int i = 0; i < d; i += kLanes) {
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, _mm256_load_ps(q + i)));
  }
  return greatest_lane(most);
}

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  const int partition = shape.k.axis == Axis::kBoth ? d : shape.k.partition;
  const float middle = static_cast<float>((1 << shape.k.bits) - 1) / 2;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    load_hack_query_avx2(shape, query, row, q);
    const float greatest = greatest_magnitude(q, d);
    const float scale = greatest / kQueryMost;
    const __m256 inverse = _mm256_set1_ps(greatest > 0 ? kQueryMost / greatest : 0.0F);
    to.scale[row] = scale;
    for (int first = 0, g = 0; first < d; first += partition, ++g) {
      const int end = d - first < partition ? d : first + partition;
      __m256 sum = _mm256_setzero_ps();
      __m256i codes = _mm256_setzero_si256();
      for (int i = first; i < end; i += kLanes) {
        const __m256 x = _mm256_load_ps(q + i);
        const __m256i code = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(&to.codes[row][i]),
                         _mm_packs_epi16(words, words));
        sum = _mm256_add_ps(sum, x);
        codes = _mm256_add_epi32(codes, code);
      }
      to.sum[row][g] = sum_of_lanes(sum);
      to.centre[row][g] = middle * ((shape.k.axis == Axis::kBoth ? 0.0F : to.sum[row][g]) -
                                    scale * static_cast<float>(sum_of_lanes(codes)));
    }
  }
}

// --- scores -------------------------------------------------------------------------------------

// What all tokens of a page have in common: each query's product with m of the channels.
template <int kRows>
inline void find_bases(const HackShape& shape, const HackQuery& query, int row,
                       const std::byte* page, float* bases) {
  __m256 sums[4];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const std::byte* m = page + shape.layout.k_metadata;
  for (int i = 0; i < shape.key_dim; i += kLanes, m += 2 * kLanes) {
    const __m256 of_channels = load_numbers(shape.k.meta, m);
    for (int j = 0; j < kRows; ++j) {
      sums[j] = _mm256_fmadd_ps(_mm256_load_ps(query.values[row + j] + i), of_channels, sums[j]);
    }
  }
  reduce<Sum>(sums, kRows, bases + row);
}

// Of kRows rows from `row` on and kGroups times 8 tokens from `token` on.
template <int kBits, bool kBoth, int kRows, int kGroups>
inline void score_rows(const HackShape& shape, const HackQuery& query, int row,
                       const std::byte* page, int token, Prefetch& prefetch, const float* bases,
                       float (*scores)[kBlockTokens]) {
  const int d = shape.key_dim;
  const int partition = kBoth ? d : shape.k.partition;
  __m256 sums[kRows][kGroups];
  for (int j = 0; j < kRows; ++j) {
    for (auto& sum : sums[j]) sum = _mm256_set1_ps(kBoth ? bases[row + j] : 0.0F);
  }
  const std::byte* const words = page + 4 * token;
  const std::byte* entries =
      page + shape.layout.k_metadata + (kBoth ? 2 * d + 2 * token : int{hack::kEntryBytes} * token);
  for (int first = 0, g = 0; first < d; first += partition, ++g) {
    const int end = d - first < partition ? d : first + partition;
    __m256i dots[kRows][kGroups];
    for (auto& of_row : dots) {
      for (__m256i& dot : of_row) dot = _mm256_setzero_si256();
    }
    hack_products::add_keys<kBits>(query, row, first, end,
                                   words + std::ptrdiff_t{4} * kBlockTokens * (first * kBits / 32),
                                   prefetch, dots);
    for (int group = 0; group < kGroups; ++group) {
      Affine affine;
      if constexpr (kBoth) {
        affine.s = load_numbers(shape.k.meta, entries + 2 * kLanes * group);
      } else {
        affine = load_affine(shape.k.meta, entries + hack::kEntryBytes * kLanes * group);
      }
      for (int j = 0; j < kRows; ++j) {
        const __m256 product_sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[j][group]),
                                                   _mm256_set1_ps(query.scale[row + j]),
                                                   _mm256_set1_ps(query.centre[row + j][g]));
        __m256& sum = sums[j][group];
        if constexpr (!kBoth) {
          sum = _mm256_fmadd_ps(affine.m, _mm256_set1_ps(query.sum[row + j][g]), sum);
        }
        sum = _mm256_fmadd_ps(affine.s, product_sum, sum);
      }
    }
    entries += hack::kEntryBytes * kBlockTokens;
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      _mm256_store_ps(&scores[row + j][token + kLanes * group], sums[j][group]);
    }
  }
}

// --- weights ------------------------------------------------------------------------------------

// s of V's tokens, as weigh_rows() wants them.
struct Scales {
  alignas(32) float of_token[kBlockTokens];
};
inline void load_scales(const HackShape& shape, const std::byte* page, Scales& scales) {
  for (int i = 0; i < kBlockTokens; i += kLanes) {
    const std::byte* const from = page + shape.layout.v_metadata + 2 * (shape.value_dim + i);
    _mm256_store_ps(scales.of_token + i, load_numbers(shape.v.meta, from));
  }
}

// The codes of 32 tokens.
inline __m256i bytes_of(const float* x, __m256 inverse) {
  __m256i code[4];
  for (int i = 0; i < 4; ++i) {
    code[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(x + kLanes * i), inverse));
  }
  return in_value_order(code);
}

// What is known of rows before their weights are bytes; a lane of these is a row.
struct Weighing {
  alignas(32) float page_max[kTileRows];
  alignas(32) float greatest[kTileRows];  // of what becomes bytes
  alignas(32) float total[kTileRows];     // of 2^(score - page_max)
  alignas(32) float codes[2][kTileRows];  // their sums: of the two halves, or first of all tokens
};

// Scores become 2^(score - page_max), times s of the token by both. Steps that wait for each other
// within a row are taken for all rows before the next.
template <bool kBoth>
inline void power_rows(float (*scores)[kBlockTokens], int rows, const Scales& scales,
                       Prefetch& prefetch, Weighing& of) {
  __m256 most[kTileRows];
  __m256 total[kTileRows];
  for (int row = rows; row % 4 != 0; ++row) most[row] = total[row] = _mm256_setzero_ps();
  for (int row = 0; row < rows; ++row) {
    __m256 half[2] = {_mm256_load_ps(scores[row]), _mm256_load_ps(scores[row] + kLanes)};
    for (int i = 2 * kLanes; i < kBlockTokens; i += 2 * kLanes) {
      half[0] = _mm256_max_ps(half[0], _mm256_load_ps(scores[row] + i));
      half[1] = _mm256_max_ps(half[1], _mm256_load_ps(scores[row] + i + kLanes));
    }
    most[row] = _mm256_max_ps(half[0], half[1]);
  }
  reduce<Greatest>(most, rows, of.page_max);
  for (int row = 0; row < rows; ++row) {
    const __m256 max = _mm256_set1_ps(of.page_max[row]);
    __m256 greatest = kBoth ? _mm256_setzero_ps() : _mm256_set1_ps(1.0F);
    __m256 sum = _mm256_setzero_ps();
#pragma GCC unroll 2
    for (int i = 0; i < kBlockTokens; i += kLanes) {
      // With those of the other stages, more than the lines of a page.
      prefetch.line();
      __m256 x = exp2_coarse(_mm256_sub_ps(_mm256_load_ps(scores[row] + i), max));
      if constexpr (kBoth) {
        sum = _mm256_add_ps(sum, x);
        x = _mm256_mul_ps(x, _mm256_load_ps(scales.of_token + i));
        greatest = _mm256_max_ps(greatest, x);
      }
      _mm256_store_ps(scores[row] + i, x);
    }
    most[row] = greatest;
    total[row] = sum;
  }
  reduce<Greatest>(most, rows, of.greatest);
  if constexpr (kBoth) reduce<Sum>(total, rows, of.total);
}

// What reduce() has stored four at a time: a load of eight would wait until both are in the cache.
inline __m256 load_fours(const float* x) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(x)), _mm_load_ps(x + 4), 1);
}

inline void code_rows(const float (*scores)[kBlockTokens], int rows, bool halves, Weighing& of,
                      Weights& weights) {
  alignas(32) float inverse[kTileRows];
  for (int row = 0; row < rows; row += kLanes) {
    const __m256 greatest = load_fours(of.greatest + row);
    const __m256 some = _mm256_cmp_ps(greatest, _mm256_setzero_ps(), _CMP_GT_OQ);
    const __m256 most = _mm256_set1_ps(static_cast<float>(kWeightMost));
    _mm256_store_ps(inverse + row, _mm256_and_ps(_mm256_div_ps(most, greatest), some));
  }
  __m256 codes[2][kTileRows];  // integers below 2^24, so their sums are exact
  for (int row = rows; row % 4 != 0; ++row) codes[0][row] = codes[1][row] = _mm256_setzero_ps();
  for (int row = 0; row < rows; ++row) {
    const __m256 of_row = _mm256_set1_ps(inverse[row]);
    const __m256i low = bytes_of(scores[row], of_row);
    const __m256i high = bytes_of(scores[row] + kBlockTokens / 2, of_row);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights.bytes[row]), low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights.bytes[row] + kBlockTokens / 2), high);
    const __m256 first = sums_of_bytes(low);
    const __m256 second = sums_of_bytes(high);
    codes[0][row] = halves ? first : _mm256_add_ps(first, second);
    codes[1][row] = second;
  }
  reduce<Sum>(codes[0], rows, of.codes[0]);
  if (halves) reduce<Sum>(codes[1], rows, of.codes[1]);
}

// What `of` says of rows first ... first + 7, of which those in `rows` are the tile's, to their
// weights and states.
template <bool kBoth>
inline void weigh_lanes(const HackShape& shape, const Weighing& of, bool halves, int first,
                        __m256i rows, StateTile& tile, Weights& weights) {
  // Twice what a code is less in values than in products.
  const int middle = kBoth ? 1 - (1 << shape.v.bits) : 0;
  const __m256 old_max = _mm256_load_ps(tile.max + first);
  const __m256 page_max = load_fours(of.page_max + first);
  const __m256 max = _mm256_max_ps(old_max, page_max);
  const __m256 keep = exp2_negative(_mm256_sub_ps(old_max, max));
  const __m256 page_unit = exp2_negative(_mm256_sub_ps(page_max, max));
  const __m256 unit = _mm256_div_ps(_mm256_mul_ps(page_unit, load_fours(of.greatest + first)),
                                    _mm256_set1_ps(static_cast<float>(kWeightMost)));
  __m256 page_total = _mm256_mul_ps(load_fours(of.total + first), page_unit);
  for (int part = 0; part < (halves ? 2 : 1); ++part) {
    const __m256 codes = load_fours(of.codes[part] + first);
    const __m256 total = _mm256_mul_ps(codes, unit);
    const __m256 off = _mm256_mul_ps(codes, _mm256_set1_ps(0.5F * static_cast<float>(middle)));
    _mm256_store_ps(weights.shift[part] + first, _mm256_mul_ps(off, unit));
    _mm256_store_ps(weights.total[part] + first, kBoth ? page_total : total);
    if constexpr (!kBoth) page_total = part == 0 ? total : _mm256_add_ps(page_total, total);
  }
  _mm256_store_ps(weights.keep + first, keep);
  _mm256_store_ps(weights.unit + first, unit);
  // A masked store takes some processors forty operations.
  const __m256 some = _mm256_castsi256_ps(rows);
  const __m256 old_sum = _mm256_load_ps(tile.sum + first);
  const __m256 sum = _mm256_fmadd_ps(old_sum, keep, page_total);
  _mm256_store_ps(tile.max + first, _mm256_blendv_ps(old_max, max, some));
  _mm256_store_ps(tile.sum + first, _mm256_blendv_ps(old_sum, sum, some));
}

template <bool kBoth>
inline void weigh_rows(const HackShape& shape, const HackItem& item, float (*scores)[kBlockTokens],
                       Prefetch& prefetch, Weights& weights) {
  const bool halves = !kBoth && shape.v.partition < kBlockTokens;
  StateTile& tile = *item.tile;
  Scales scales;
  if constexpr (kBoth) load_scales(shape, item.page, scales);
  Weighing of;
  // Rows beyond the tile's are computed on, too: with numbers, whatever they are.
  for (int row = 0; row < kTileRows; row += kLanes) {
    _mm256_store_ps(of.page_max + row, _mm256_setzero_ps());
    _mm256_store_ps(of.greatest + row, _mm256_setzero_ps());
    _mm256_store_ps(of.total + row, _mm256_setzero_ps());
    for (auto& codes : of.codes) _mm256_store_ps(codes + row, _mm256_setzero_ps());
  }
  power_rows<kBoth>(scores, tile.rows, scales, prefetch, of);
  code_rows(scores, tile.rows, halves, of, weights);
  for (int first = 0; first < tile.rows; first += kLanes) {
    weigh_lanes<kBoth>(shape, of, halves, first, first_lanes(tile.rows - first), tile, weights);
  }
}

// --- output -------------------------------------------------------------------------------------

// out[channel ... channel + 8 kGroups - 1] of kRows rows: out * keep + weights x V.
template <int kBits, bool kBoth, int kRows, int kParts, int kGroups>
inline void add_values(const HackShape& shape, const Weights& weights, int row,
                       const std::byte* page, int channel, Prefetch& prefetch, float* out) {
  const int d = shape.value_dim;
  const std::byte* const words = page + shape.layout.v_codes + 4 * channel;
  __m256i dots[kRows][kParts][kGroups];
  for (auto& of_row : dots) {
    for (auto& of_part : of_row) {
      for (__m256i& dot : of_part) dot = _mm256_setzero_si256();
    }
  }
  hack_products::add_values<kBits>(weights.bytes, row, words, 4 * d, prefetch, dots);
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
        const __m256 product_sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[j][part][group]),
                                                   _mm256_set1_ps(weights.unit[row + j]),
                                                   _mm256_set1_ps(weights.shift[part][row + j]));
        __m256 sum = _mm256_loadu_ps(out + j * d + at);
        if (part == 0) sum = _mm256_mul_ps(sum, _mm256_set1_ps(weights.keep[row + j]));
        sum = _mm256_fmadd_ps(affine.m, _mm256_set1_ps(weights.total[part][row + j]), sum);
        sum = kBoth ? _mm256_add_ps(product_sum, sum) : _mm256_fmadd_ps(affine.s, product_sum, sum);
        _mm256_storeu_ps(out + j * d + at, sum);
      }
    }
  }
}

// --- a page -------------------------------------------------------------------------------------

// Groups of 8 channels whose sums are in registers.
template <int kBits, int kRows, int kParts>
constexpr int kChannelGroups = kRows == 4 && kBits == 2 && kParts == 2 ? 1 : 2;

// See attention/hack_pages.h.
struct Avx2 {
  static constexpr int kBatchRows = 1;  // several pages at once gained nothing

  template <int kBits, bool kBoth>
  static void score(const HackShape& shape, const HackQuery& query, int rows, const std::byte* page,
                    Prefetch& prefetch, float (*scores)[kBlockTokens]) {
    alignas(32) float bases[kTileRows + 3];  // a row is written as four
    const int whole_rows = rows / 4 * 4;
    for (int row = 0; row < whole_rows; row += 4) {
      if constexpr (kBoth) find_bases<4>(shape, query, row, page, bases);
      for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
        score_rows<kBits, kBoth, 4, 2>(shape, query, row, page, token, prefetch, bases, scores);
      }
    }
    for (int row = whole_rows; row < rows; ++row) {
      if constexpr (kBoth) find_bases<1>(shape, query, row, page, bases);
      for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
        score_rows<kBits, kBoth, 1, 2>(shape, query, row, page, token, prefetch, bases, scores);
      }
    }
  }

  template <bool kBoth>
  static void weigh(const HackShape& shape, const Batch& batch, float (*scores)[kBlockTokens],
                    Prefetch& prefetch, Weights& weights) {
    weigh_rows<kBoth>(shape, batch.items[0], scores, prefetch, weights);
  }

  template <int kBits, bool kBoth, int kParts>
  static void add(const HackShape& shape, const Weights& weights, int /*first_row*/,
                  const std::byte* page, Prefetch& prefetch, StateTile& tile) {
    const int whole_rows = tile.rows / 4 * 4;
    for (int channel = 0; channel < shape.value_dim; channel += 2 * kLanes) {
      for (int row = 0; row < whole_rows; row += 4) {
        add_rows<kBits, kBoth, 4, kParts>(shape, weights, row, page, channel, prefetch, tile);
      }
      for (int row = whole_rows; row < tile.rows; ++row) {
        add_rows<kBits, kBoth, 1, kParts>(shape, weights, row, page, channel, prefetch, tile);
      }
    }
  }

 private:
  // 16 channels.
  template <int kBits, bool kBoth, int kRows, int kParts>
  static void add_rows(const HackShape& shape, const Weights& weights, int row,
                       const std::byte* page, int channel, Prefetch& prefetch, StateTile& tile) {
    constexpr int kGroups = kChannelGroups<kBits, kRows, kParts>;
    float* const out = tile.out + row * shape.value_dim;
    for (int i = 0; i < 2; i += kGroups) {
      add_values<kBits, kBoth, kRows, kParts, kGroups>(shape, weights, row, page,
                                                       channel + kLanes * i, prefetch, out);
    }
  }
};

}  // namespace

void load_hack_query_avx2(const HackShape& shape, const PageQuery& query, int row, float* to) {
  const int d = shape.key_dim;
  for (int i = 0; i < d; i += kLanes) {
    __m256 sum = _mm256_setzero_ps();
    for (int part = 0; part < query.parts; ++part) {
      const auto* at =
          reinterpret_cast<const __m128i*>(query.q[row] + part * query.part_stride + i);
      const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16);
      sum = _mm256_add_ps(sum, _mm256_castsi256_ps(bits));
    }
    _mm256_store_ps(to + i, _mm256_mul_ps(sum, _mm256_set1_ps(query.scale)));
  }
  if (shape.mix) mix_channels_avx2(to, 1, d);
}

HackKernel hack_kernel_avx2() { return {prepare, hack_pages::attend<Avx2>}; }

}  // namespace kvlane
