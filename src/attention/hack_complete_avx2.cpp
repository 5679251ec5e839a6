// Attention on codes in the complete form of HACK's paper with AVX2: the products of
// hack_page_avx2.cpp, and what the form wants beside them. That is, beyond that kernel, a
// multiplication for each score and partition, and one for each output; least weights; and sums of
// codes, which are read or taken, once for all rows of a tile. Weights have a sign here, as queries
// have.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/exp2_avx2.h"
#include "attention/hack_complete_page.h"
#include "attention/hack_pages.h"
#include "attention/hack_products_avx2.h"
#include "attention/lanes_avx2.h"
#include "quant/hack_avx2.h"

namespace kvlane {
namespace {

using hack::avx2::Affine;
using hack::avx2::kLanes;
using hack::avx2::load_affine;
using hack_pages::Scores;
using hack_pages::with_bits;
using hack_products::Greatest;
using hack_products::in_value_order;
using hack_products::Least;
using hack_products::reduce;
using hack_products::Sum;
using hack_products::sums_of_bytes;

constexpr float kUnitLeast = 0x1p-126F;

// --- the query ----------------------------------------------------------------------------------

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    load_hack_query_avx2(shape, query, row, q);
    for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
      const int end = d - first < shape.k.partition ? d : first + shape.k.partition;
      __m256 least = _mm256_load_ps(q + first);
      __m256 greatest = least;
      for (int i = first + kLanes; i < end; i += kLanes) {
        least = _mm256_min_ps(least, _mm256_load_ps(q + i));
        greatest = _mm256_max_ps(greatest, _mm256_load_ps(q + i));
      }
      const float from = least_lane(least);
      const float range = greatest_lane(greatest) - from;
      const float unit = range / 255.0F < kUnitLeast ? 0.0F : range / 255.0F;
      const __m256 inverse = _mm256_set1_ps(unit > 0 ? 255.0F / range : 0.0F);
      __m256i sum = _mm256_setzero_si256();
      for (int i = first; i < end; i += kLanes) {
        const __m256 x = _mm256_sub_ps(_mm256_load_ps(q + i), _mm256_set1_ps(from));
        const __m256i code =
            _mm256_sub_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)), _mm256_set1_epi32(128));
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(&to.codes[row][i]),
                         _mm_packs_epi16(words, words));
        sum = _mm256_add_epi32(sum, code);
      }
      const float origin = from + 128 * unit;
      to.origin[row][g] = origin;
      to.unit[row][g] = unit;
      to.sum[row][g] =
          unit * static_cast<float>(sum_of_lanes(sum)) + origin * static_cast<float>(end - first);
    }
  }
}

// --- sums of codes ------------------------------------------------------------------------------

// As floats, in the order of entries.
void load_sums(const hack::Plane& plane, int head_dim, const std::byte* from, float* to) {
  const int count = hack::entries(plane, head_dim);
  const bool bytes = hack::sum_bytes(plane, head_dim) == 1;
  for (int i = 0; i < count; i += kLanes) {
    const __m256i sums =
        bytes ? _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i)))
              : _mm256_cvtepu16_epi32(
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i)));
    _mm256_store_ps(to + i, _mm256_cvtepi32_ps(sums));
  }
}

// Of K, or of V.
void find_sums(const hack::Plane& plane, int head_dim, const std::byte* codes,
               const std::byte* stored, float* to) {
  alignas(64) std::byte taken[kHackSumsBytesMax];
  if (stored == nullptr) hack::sum_codes_avx2(plane, head_dim, codes, taken);
  load_sums(plane, head_dim, stored == nullptr ? taken : stored, to);
}

// --- scores -------------------------------------------------------------------------------------

// Of kRows rows from `row` on and kGroups times 8 tokens from `token` on.
template <int kBits, int kRows, int kGroups>
inline void score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
                  const float* sums, int token, Prefetch& prefetch, Scores& scores) {
  const int d = shape.key_dim;
  __m256 totals[kRows][kGroups];
  for (auto& of_row : totals) {
    for (__m256& total : of_row) total = _mm256_setzero_ps();
  }
  const std::byte* const words = page + 4 * token;
  const std::byte* entries = page + shape.layout.k_metadata + hack::kEntryBytes * token;
  sums += token;
  for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
    const int end = d - first < shape.k.partition ? d : first + shape.k.partition;
    __m256i dots[kRows][kGroups];
    for (auto& of_row : dots) {
      for (__m256i& dot : of_row) dot = _mm256_setzero_si256();
    }
    hack_products::add_keys<kBits>(query, row, first, end,
                                   words + std::ptrdiff_t{4} * kBlockTokens * (first * kBits / 32),
                                   prefetch, dots);
    for (int group = 0; group < kGroups; ++group) {
      const Affine affine = load_affine(shape.k.meta, entries + hack::kEntryBytes * kLanes * group);
      const __m256 codes = _mm256_load_ps(sums + kLanes * group);
      for (int j = 0; j < kRows; ++j) {
        const __m256 product = _mm256_fmadd_ps(
            _mm256_cvtepi32_ps(dots[j][group]), _mm256_set1_ps(query.unit[row + j][g]),
            _mm256_mul_ps(codes, _mm256_set1_ps(query.origin[row + j][g])));
        __m256& total = totals[j][group];
        total = _mm256_fmadd_ps(affine.m, _mm256_set1_ps(query.sum[row + j][g]), total);
        total = _mm256_fmadd_ps(affine.s, product, total);
      }
    }
    entries += hack::kEntryBytes * kBlockTokens;
    sums += kBlockTokens;
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      _mm256_store_ps(&scores[row + j][token + kLanes * group], totals[j][group]);
    }
  }
}

template <int kBits>
void score_page(const HackShape& shape, const HackItem& item, const float* sums, Prefetch& prefetch,
                Scores& scores) {
  const int rows = item.tile->rows;
  const int whole_rows = rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) {
    for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
      score<kBits, 4, 2>(shape, *item.query, row, item.page, sums, token, prefetch, scores);
    }
  }
  for (int row = whole_rows; row < rows; ++row) {
    for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
      score<kBits, 1, 2>(shape, *item.query, row, item.page, sums, token, prefetch, scores);
    }
  }
}

void score_item(const HackShape& shape, const HackItem& item, Prefetch& prefetch, Scores& scores) {
  alignas(32) float sums[kHackEntriesMax];
  const std::size_t stored = shape.layout.k_sums;
  find_sums(shape.k, shape.key_dim, item.page, stored == 0 ? nullptr : item.page + stored, sums);
  with_bits(shape.k.bits, [&](auto known) {
    score_page<decltype(known)::kValue>(shape, item, sums, prefetch, scores);
  });
  hide_unseen(item, scores);
}

// --- weights ------------------------------------------------------------------------------------

// The weights of a tile's rows, four bytes for each register and class of V, and what they stand
// for in each partition of tokens.
struct Weights {
  alignas(32) std::int8_t bytes[kTileRows][kBlockTokens];
  alignas(32) float keep[kTileRows];  // what the state so far is to be multiplied with
  alignas(32) float origin[2][kTileRows];
  alignas(32) float unit[2][kTileRows];
  alignas(32) float sum[2][kTileRows];
};

// What is known of rows before their weights are bytes; a lane of these is a row.
struct Weighing {
  alignas(32) float page_max[kTileRows];
  alignas(32) float max[kTileRows];       // of the state with this page
  alignas(32) float total[kTileRows];     // of all weights
  alignas(32) float least[2][kTileRows];  // of a partition's weights
  alignas(32) float greatest[2][kTileRows];
  alignas(32) float codes[2][kTileRows];  // their sums
};

inline void find_max(const Scores& scores, StateTile& tile, Weighing& of, Weights& weights) {
  __m256 most[kTileRows];
  for (__m256& x : most) x = _mm256_setzero_ps();
  for (int row = 0; row < tile.rows; ++row) {
    const float* const from = scores[row];
    most[row] = _mm256_load_ps(from);
    for (int i = kLanes; i < kBlockTokens; i += kLanes) {
      most[row] = _mm256_max_ps(most[row], _mm256_load_ps(from + i));
    }
  }
  reduce<Greatest>(most, tile.rows, of.page_max);
  for (int row = 0; row < tile.rows; row += kLanes) {
    const __m256i rows = first_lanes(tile.rows - row);
    const __m256 old_max = _mm256_maskload_ps(tile.max + row, rows);
    const __m256 max = _mm256_max_ps(old_max, _mm256_load_ps(of.page_max + row));
    _mm256_store_ps(of.max + row, max);
    _mm256_store_ps(weights.keep + row, exp2_negative(_mm256_sub_ps(old_max, max)));
    _mm256_maskstore_ps(tile.max + row, rows, max);
  }
}

// Scores become 2^(score - max). Steps that wait for each other within a row are taken for all rows
// before the next.
template <int kParts>
inline void power_rows(Scores& scores, int rows, Prefetch& prefetch, Weighing& of) {
  constexpr int kTokens = kBlockTokens / kParts;
  __m256 least[kParts][kTileRows];
  __m256 greatest[kParts][kTileRows];
  __m256 total[kTileRows];
  for (int row = 0; row < kTileRows; ++row) {
    total[row] = _mm256_setzero_ps();
    for (int part = 0; part < kParts; ++part) {
      least[part][row] = greatest[part][row] = _mm256_setzero_ps();
    }
  }
  for (int row = 0; row < rows; ++row) {
    __m256 sum = _mm256_setzero_ps();
    for (int part = 0; part < kParts; ++part) {
      // Weights are from 0 to 1.
      __m256 low = _mm256_set1_ps(1.0F);
      __m256 high = _mm256_setzero_ps();
      for (int i = kTokens * part; i < kTokens * (part + 1); i += kLanes) {
        // With those of the other stages, more than the lines of a page.
        prefetch.line();
        const __m256 score = _mm256_load_ps(scores[row] + i);
        const __m256 x = exp2_coarse(_mm256_sub_ps(score, _mm256_set1_ps(of.max[row])));
        _mm256_store_ps(scores[row] + i, x);
        sum = _mm256_add_ps(sum, x);
        low = _mm256_min_ps(low, x);
        high = _mm256_max_ps(high, x);
      }
      least[part][row] = low;
      greatest[part][row] = high;
    }
    total[row] = sum;
  }
  reduce<Sum>(total, rows, of.total);
  for (int part = 0; part < kParts; ++part) {
    reduce<Least>(least[part], rows, of.least[part]);
    reduce<Greatest>(greatest[part], rows, of.greatest[part]);
  }
}

// The codes of 32 tokens as bytes without a sign, in the order of V's words.
inline __m256i bytes_of(const float* x, float least, float inverse) {
  __m256i code[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 above = _mm256_sub_ps(_mm256_load_ps(x + kLanes * i), _mm256_set1_ps(least));
    code[i] = _mm256_cvtps_epi32(_mm256_mul_ps(above, _mm256_set1_ps(inverse)));
  }
  return in_value_order(code);
}

template <int kParts>
inline void code_rows(const Scores& scores, int rows, const float (*inverse)[kTileRows],
                      Weighing& of, Weights& weights) {
  constexpr int kHalf = kBlockTokens / 2;
  const __m256i middle = _mm256_set1_epi8(-128);
  __m256 codes[2][kTileRows];  // integers below 2^24, so their sums are exact
  for (auto& of_part : codes) {
    for (__m256& x : of_part) x = _mm256_setzero_ps();
  }
  for (int row = 0; row < rows; ++row) {
    for (int half = 0; half < 2; ++half) {
      const int part = kParts == 1 ? 0 : half;
      const __m256i bytes =
          bytes_of(scores[row] + kHalf * half, of.least[part][row], inverse[part][row]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights.bytes[row] + kHalf * half),
                         _mm256_xor_si256(bytes, middle));
      codes[part][row] = _mm256_add_ps(codes[part][row], sums_of_bytes(bytes));
    }
  }
  for (int part = 0; part < kParts; ++part) {
    reduce<Sum>(codes[part], rows, of.codes[part]);
    // With a sign they are 128 less.
    for (int row = 0; row < rows; ++row) {
      of.codes[part][row] -= 128.0F * static_cast<float>(kBlockTokens / kParts);
    }
  }
}

template <int kParts>
void weigh(const HackItem& item, Scores& scores, Prefetch& prefetch, Weights& weights) {
  StateTile& tile = *item.tile;
  Weighing of = {};  // rows beyond the tile's are computed on, too: with zeros
  find_max(scores, tile, of, weights);
  power_rows<kParts>(scores, tile.rows, prefetch, of);
  alignas(32) float inverse[2][kTileRows];
  for (int part = 0; part < kParts; ++part) {
    for (int row = 0; row < kTileRows; row += kLanes) {
      const __m256 least = _mm256_load_ps(of.least[part] + row);
      const __m256 range = _mm256_sub_ps(_mm256_load_ps(of.greatest[part] + row), least);
      const __m256 quotient = _mm256_div_ps(range, _mm256_set1_ps(255.0F));
      const __m256 some = _mm256_cmp_ps(quotient, _mm256_set1_ps(kUnitLeast), _CMP_GE_OQ);
      const __m256 unit = _mm256_and_ps(some, quotient);
      _mm256_store_ps(weights.unit[part] + row, unit);
      _mm256_store_ps(inverse[part] + row,
                      _mm256_and_ps(some, _mm256_div_ps(_mm256_set1_ps(255.0F), range)));
      const __m256 shift = _mm256_mul_ps(unit, _mm256_set1_ps(128.0F));
      _mm256_store_ps(weights.origin[part] + row, _mm256_add_ps(least, shift));
    }
  }
  code_rows<kParts>(scores, tile.rows, inverse, of, weights);
  for (int part = 0; part < kParts; ++part) {
    for (int row = 0; row < kTileRows; row += kLanes) {
      const __m256 tokens = _mm256_set1_ps(static_cast<float>(kBlockTokens / kParts));
      const __m256 origins = _mm256_mul_ps(_mm256_load_ps(weights.origin[part] + row), tokens);
      _mm256_store_ps(weights.sum[part] + row,
                      _mm256_fmadd_ps(_mm256_load_ps(of.codes[part] + row),
                                      _mm256_load_ps(weights.unit[part] + row), origins));
    }
  }
  for (int row = 0; row < tile.rows; ++row) {
    tile.sum[row] = tile.sum[row] * weights.keep[row] + of.total[row];
  }
}

// --- output -------------------------------------------------------------------------------------

// out[channel ... channel + 8 kGroups - 1] of kRows rows: out * keep + weights x V. kParts
// partitions of tokens, 1 or 2.
template <int kBits, int kRows, int kParts, int kGroups>
inline void add_values(const HackShape& shape, const Weights& weights, int row,
                       const std::byte* page, const float* sums, int channel, Prefetch& prefetch,
                       float* out) {
  const int d = shape.value_dim;
  const std::byte* const words = page + shape.layout.v_codes + 4 * channel;
  __m256i dots[kRows][kParts][kGroups];
  for (auto& of_row : dots) {
    for (auto& of_part : of_row) {
      for (auto& dot : of_part) dot = _mm256_setzero_si256();
    }
  }
  hack_products::add_values<kBits>(weights.bytes, row, words, 4 * d, prefetch, dots);
  prefetch.line();
  for (int group = 0; group < kGroups; ++group) {
    const int at = channel + kLanes * group;
    for (int part = 0; part < kParts; ++part) {
      const std::byte* const entries =
          page + shape.layout.v_metadata + hack::kEntryBytes * (part * d + at);
      const Affine affine = load_affine(shape.v.meta, entries);
      const __m256 codes = _mm256_load_ps(sums + part * d + at);
      for (int j = 0; j < kRows; ++j) {
        const __m256 product = _mm256_fmadd_ps(
            _mm256_cvtepi32_ps(dots[j][part][group]), _mm256_set1_ps(weights.unit[part][row + j]),
            _mm256_mul_ps(codes, _mm256_set1_ps(weights.origin[part][row + j])));
        __m256 sum = _mm256_loadu_ps(out + j * d + at);
        if (part == 0) sum = _mm256_mul_ps(sum, _mm256_set1_ps(weights.keep[row + j]));
        sum = _mm256_fmadd_ps(affine.m, _mm256_set1_ps(weights.sum[part][row + j]), sum);
        _mm256_storeu_ps(out + j * d + at, _mm256_fmadd_ps(affine.s, product, sum));
      }
    }
  }
}

// Groups of 8 channels whose sums are in registers.
template <int kBits, int kRows, int kParts>
constexpr int kChannelGroups = kRows == 4 && kBits == 2 && kParts == 2 ? 1 : 2;

// 16 channels of kRows rows.
template <int kBits, int kRows, int kParts>
inline void add_rows(const HackShape& shape, const Weights& weights, const HackItem& item,
                     const float* sums, int row, int channel, Prefetch& prefetch) {
  constexpr int kGroups = kChannelGroups<kBits, kRows, kParts>;
  float* const out = item.tile->out + row * shape.value_dim;
  for (int i = 0; i < 2; i += kGroups) {
    add_values<kBits, kRows, kParts, kGroups>(shape, weights, row, item.page, sums,
                                              channel + kLanes * i, prefetch, out);
  }
}

template <int kBits, int kParts>
void add_page(const HackShape& shape, const Weights& weights, const HackItem& item,
              const float* sums, Prefetch& prefetch) {
  const int rows = item.tile->rows;
  const int whole_rows = rows / 4 * 4;
  for (int channel = 0; channel < shape.value_dim; channel += 2 * kLanes) {
    for (int row = 0; row < whole_rows; row += 4) {
      add_rows<kBits, 4, kParts>(shape, weights, item, sums, row, channel, prefetch);
    }
    for (int row = whole_rows; row < rows; ++row) {
      add_rows<kBits, 1, kParts>(shape, weights, item, sums, row, channel, prefetch);
    }
  }
}

void add_item(const HackShape& shape, const HackItem& item, const Weights& weights,
              Prefetch& prefetch) {
  alignas(32) float sums[kHackEntriesMax];
  const std::size_t stored = shape.layout.v_sums;
  find_sums(shape.v, shape.value_dim, item.page + shape.layout.v_codes,
            stored == 0 ? nullptr : item.page + stored, sums);
  with_bits(shape.v.bits, [&](auto known) {
    constexpr int kBits = decltype(known)::kValue;
    shape.v.partition < kBlockTokens ? add_page<kBits, 2>(shape, weights, item, sums, prefetch)
                                     : add_page<kBits, 1>(shape, weights, item, sums, prefetch);
  });
}

// --- a page -------------------------------------------------------------------------------------

// The scores of the next page fill the time that weights wait for each other.
void attend(const HackShape& shape, std::span<const HackItem> items) {
  alignas(32) Scores scores[2];
  Weights weights;
  Prefetch first(items[0].next);
  score_item(shape, items[0], first, scores[0]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    // What the page whose scores are taken now asks for.
    Prefetch prefetch(i + 1 < items.size() ? items[i + 1].next : std::span<const std::byte>());
    shape.v.partition < kBlockTokens ? weigh<2>(items[i], scores[i % 2], prefetch, weights)
                                     : weigh<1>(items[i], scores[i % 2], prefetch, weights);
    if (i + 1 < items.size()) score_item(shape, items[i + 1], prefetch, scores[(i + 1) % 2]);
    add_item(shape, items[i], weights, prefetch);
  }
}

}  // namespace

HackKernel hack_complete_kernel_avx2() { return {prepare, attend}; }

}  // namespace kvlane
