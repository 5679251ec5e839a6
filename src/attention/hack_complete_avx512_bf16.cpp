// Attention on codes in the complete form of HACK's paper with AVX-512: the products of
// hack_page_avx512_bf16.cpp, and what the form wants beside them. That is, beyond that kernel, a
// multiplication for each score and partition, and one for each output; least weights; and sums of
// codes, which are read or taken, once for all rows of a tile.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/exp2_avx512.h"
#include "attention/hack_codes_avx512_bf16.h"
#include "attention/hack_complete_page.h"
#include "attention/hack_pages.h"

namespace kvlane {
namespace {

using hack::Affine;
using hack::broadcast;
using hack::codes_of;
using hack::Greatest;
using hack::in_value_order;
using hack::kLanes;
using hack::Least;
using hack::load_affine;
using hack::multiply_keys;
using hack::reduce;
using hack::Sum;
using hack_pages::Scores;
using hack_pages::with_bits;

constexpr float kUnitLeast = 0x1p-126F;

// --- the query ----------------------------------------------------------------------------------

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    load_hack_query_avx512(shape, query, row, q);
    for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
      const int end = d - first < shape.k.partition ? d : first + shape.k.partition;
      __m512 least = _mm512_load_ps(q + first);
      __m512 greatest = least;
      for (int i = first + kLanes; i < end; i += kLanes) {
        least = _mm512_min_ps(least, _mm512_load_ps(q + i));
        greatest = _mm512_max_ps(greatest, _mm512_load_ps(q + i));
      }
      const float from = _mm512_reduce_min_ps(least);
      const float range = _mm512_reduce_max_ps(greatest) - from;
      const float unit = range / 255.0F < kUnitLeast ? 0.0F : range / 255.0F;
      const __m512 inverse = _mm512_set1_ps(unit > 0 ? 255.0F / range : 0.0F);
      __m512i sum = _mm512_setzero_si512();
      for (int i = first; i < end; i += kLanes) {
        const __m512 x = _mm512_sub_ps(_mm512_load_ps(q + i), _mm512_set1_ps(from));
        const __m512i code =
            _mm512_sub_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)), _mm512_set1_epi32(128));
        _mm_store_si128(reinterpret_cast<__m128i*>(&to.codes[row][i]), _mm512_cvtepi32_epi8(code));
        sum = _mm512_add_epi32(sum, code);
      }
      const float origin = from + 128 * unit;
      to.origin[row][g] = origin;
      to.unit[row][g] = unit;
      to.sum[row][g] = unit * static_cast<float>(_mm512_reduce_add_epi32(sum)) +
                       origin * static_cast<float>(end - first);
    }
  }
}

// --- sums of codes ------------------------------------------------------------------------------

// As floats, in the order of entries.
void load_sums(const hack::Plane& plane, int head_dim, const std::byte* from, float* to) {
  const int count = hack::entries(plane, head_dim);
  const bool bytes = hack::sum_bytes(plane, head_dim) == 1;
  for (int i = 0; i < count; i += kLanes) {
    const __m512i sums =
        bytes ? _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from + i)))
              : _mm512_cvtepu16_epi32(
                    _mm256_load_si256(reinterpret_cast<const __m256i*>(from + 2 * i)));
    _mm512_store_ps(to + i, _mm512_cvtepi32_ps(sums));
  }
}

// Of K, or of V.
void find_sums(const hack::Plane& plane, int head_dim, const std::byte* codes,
               const std::byte* stored, float* to) {
  alignas(64) std::byte taken[kHackSumsBytesMax];
  if (stored == nullptr) hack::sum_codes_avx512_bf16(plane, head_dim, codes, taken);
  load_sums(plane, head_dim, stored == nullptr ? taken : stored, to);
}

// --- scores -------------------------------------------------------------------------------------

// Of kRows rows from `row` on and kGroups times 16 tokens from `token` on.
template <int kBits, int kRows, int kGroups>
inline void score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
                  const float* sums, int token, Prefetch& prefetch, Scores& scores) {
  const int d = shape.key_dim;
  __m512 totals[kRows][kGroups];
  for (auto& of_row : totals) {
    for (__m512& total : of_row) total = _mm512_setzero_ps();
  }
  const std::byte* words = page + 4 * token;
  const std::byte* entries = page + shape.layout.k_metadata + hack::kEntryBytes * token;
  sums += token;
  for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
    const int end = d - first < shape.k.partition ? d : first + shape.k.partition;
    __m512i dots[kRows][kGroups];
    words = multiply_keys<kBits>(words, query, row, first, end, prefetch, dots);
    for (int group = 0; group < kGroups; ++group) {
      const Affine affine = load_affine(shape.k.meta, entries + 64 * group);
      const __m512 codes = _mm512_load_ps(sums + kLanes * group);
      for (int j = 0; j < kRows; ++j) {
        const __m512 product = _mm512_fmadd_ps(
            _mm512_cvtepi32_ps(dots[j][group]), _mm512_set1_ps(query.unit[row + j][g]),
            _mm512_mul_ps(codes, _mm512_set1_ps(query.origin[row + j][g])));
        __m512& total = totals[j][group];
        total = _mm512_fmadd_ps(affine.m, _mm512_set1_ps(query.sum[row + j][g]), total);
        total = _mm512_fmadd_ps(affine.s, product, total);
      }
    }
    entries += hack::kEntryBytes * kBlockTokens;
    sums += kBlockTokens;
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      _mm512_store_ps(&scores[row + j][token + kLanes * group], totals[j][group]);
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
    score<kBits, 1, 4>(shape, *item.query, row, item.page, sums, 0, prefetch, scores);
  }
}

void score_item(const HackShape& shape, const HackItem& item, Prefetch& prefetch, Scores& scores) {
  alignas(64) float sums[kHackEntriesMax];
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
  alignas(64) std::int8_t bytes[kTileRows][kBlockTokens];
  alignas(64) float keep[kTileRows];  // what the state so far is to be multiplied with
  alignas(64) float origin[2][kTileRows];
  alignas(64) float unit[2][kTileRows];
  alignas(64) float sum[2][kTileRows];
};

// What is known of rows before their weights are bytes; a lane of these is a row.
struct Weighing {
  alignas(64) float page_max[kTileRows];
  alignas(64) float max[kTileRows];       // of the state with this page
  alignas(64) float total[kTileRows];     // of all weights
  alignas(64) float least[2][kTileRows];  // of a partition's weights
  alignas(64) float greatest[2][kTileRows];
  alignas(64) float codes[2][kTileRows];  // their sums
};

inline void find_max(const Scores& scores, StateTile& tile, Weighing& of, Weights& weights) {
  __m512 most[kTileRows];
  for (__m512& x : most) x = _mm512_setzero_ps();
  for (int row = 0; row < tile.rows; ++row) {
    const float* const from = scores[row];
    most[row] = _mm512_max_ps(
        _mm512_max_ps(_mm512_load_ps(from), _mm512_load_ps(from + kLanes)),
        _mm512_max_ps(_mm512_load_ps(from + 2 * kLanes), _mm512_load_ps(from + 3 * kLanes)));
  }
  reduce<Greatest>(most, tile.rows, of.page_max);
  const auto rows = static_cast<__mmask16>((1U << tile.rows) - 1U);
  const __m512 old_max = _mm512_maskz_loadu_ps(rows, tile.max);
  const __m512 max = _mm512_max_ps(old_max, _mm512_load_ps(of.page_max));
  _mm512_store_ps(of.max, max);
  _mm512_store_ps(weights.keep, exp2_negative(_mm512_sub_ps(old_max, max)));
  _mm512_mask_storeu_ps(tile.max, rows, max);
}

// Scores become 2^(score - max). Steps that wait for each other within a row are taken for all rows
// before the next.
template <int kParts>
inline void power_rows(Scores& scores, int rows, Prefetch& prefetch, Weighing& of) {
  __m512 least[kParts][kTileRows];
  __m512 greatest[kParts][kTileRows];
  __m512 total[kTileRows];
  for (int row = 0; row < kTileRows; ++row) {
    total[row] = _mm512_setzero_ps();
    for (int part = 0; part < kParts; ++part) {
      least[part][row] = greatest[part][row] = _mm512_setzero_ps();
    }
  }
  for (int row = 0; row < rows; ++row) {
    __m512 x[4];
    for (int i = 0; i < 4; ++i) {
      // With those of the other stages, more than the lines of a page.
      prefetch.line();
      prefetch.line();
      const __m512 score = _mm512_load_ps(scores[row] + kLanes * i);
      x[i] = exp2_coarse(_mm512_sub_ps(score, _mm512_set1_ps(of.max[row])));
      _mm512_store_ps(scores[row] + kLanes * i, x[i]);
    }
    total[row] = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
    const __m512 low[2] = {_mm512_min_ps(x[0], x[1]), _mm512_min_ps(x[2], x[3])};
    const __m512 high[2] = {_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])};
    for (int part = 0; part < kParts; ++part) {
      least[part][row] = kParts == 1 ? _mm512_min_ps(low[0], low[1]) : low[part];
      greatest[part][row] = kParts == 1 ? _mm512_max_ps(high[0], high[1]) : high[part];
    }
  }
  reduce<Sum>(total, rows, of.total);
  for (int part = 0; part < kParts; ++part) {
    reduce<Least>(least[part], rows, of.least[part]);
    reduce<Greatest>(greatest[part], rows, of.greatest[part]);
  }
}

// A row's weights as bytes in the order of V's words; gives lanes that add up to their sum. All in
// registers: a load that spans several stores waits for them.
template <int kParts>
inline __m512 code_row(const float* x, int row, const float (*inverse)[kTileRows],
                       const Weighing& of, Weights& weights) {
  __m512i code[4];
  for (int i = 0; i < 4; ++i) {
    const int part = kParts == 1 ? 0 : i / 2;
    const __m512 above =
        _mm512_sub_ps(_mm512_load_ps(x + kLanes * i), _mm512_set1_ps(of.least[part][row]));
    code[i] = _mm512_cvtps_epi32(_mm512_mul_ps(above, _mm512_set1_ps(inverse[part][row])));
  }
  const __m512i packed = _mm512_packus_epi16(_mm512_packus_epi32(code[0], code[1]),
                                             _mm512_packus_epi32(code[2], code[3]));
  const __m512i bytes = _mm512_xor_si512(in_value_order(packed), _mm512_set1_epi8(-128));
  _mm512_store_si512(weights.bytes[row], bytes);
  return _mm512_cvtepi32_ps(
      _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes));
}

template <int kParts>
inline void code_rows(const Scores& scores, int rows, const float (*inverse)[kTileRows],
                      Weighing& of, Weights& weights) {
  __m512 codes[kTileRows];  // integers below 2^24, so their sums are exact
  for (__m512& x : codes) x = _mm512_setzero_ps();
  for (int row = 0; row < rows; ++row) {
    codes[row] = code_row<kParts>(scores[row], row, inverse, of, weights);
  }
  reduce<Sum>(codes, rows, of.codes[0]);
  if (kParts == 1) return;
  // Registers 0 and 1 are tokens 0 ... 31, the low half of the bytes.
  for (int row = 0; row < rows; ++row) codes[row] = _mm512_maskz_mov_ps(0xff00, codes[row]);
  reduce<Sum>(codes, rows, of.codes[1]);
  for (int row = 0; row < rows; ++row) of.codes[0][row] -= of.codes[1][row];
}

template <int kParts>
void weigh(const HackItem& item, Scores& scores, Prefetch& prefetch, Weights& weights) {
  StateTile& tile = *item.tile;
  Weighing of = {};  // rows beyond the tile's are computed on, too: with zeros
  find_max(scores, tile, of, weights);
  power_rows<kParts>(scores, tile.rows, prefetch, of);
  alignas(64) float inverse[2][kTileRows];
  for (int part = 0; part < kParts; ++part) {
    const __m512 least = _mm512_load_ps(of.least[part]);
    const __m512 range = _mm512_sub_ps(_mm512_load_ps(of.greatest[part]), least);
    const __m512 unit = _mm512_div_ps(range, _mm512_set1_ps(255.0F));
    const __mmask16 some = _mm512_cmp_ps_mask(unit, _mm512_set1_ps(kUnitLeast), _CMP_GE_OQ);
    _mm512_store_ps(weights.unit[part], _mm512_maskz_mov_ps(some, unit));
    _mm512_store_ps(inverse[part], _mm512_maskz_div_ps(some, _mm512_set1_ps(255.0F), range));
    const __m512 shift = _mm512_maskz_mul_ps(some, unit, _mm512_set1_ps(128.0F));
    _mm512_store_ps(weights.origin[part], _mm512_add_ps(least, shift));
  }
  code_rows<kParts>(scores, tile.rows, inverse, of, weights);
  for (int part = 0; part < kParts; ++part) {
    const __m512 codes = _mm512_load_ps(of.codes[part]);
    const __m512 tokens = _mm512_set1_ps(static_cast<float>(kBlockTokens / kParts));
    const __m512 origins = _mm512_mul_ps(_mm512_load_ps(weights.origin[part]), tokens);
    _mm512_store_ps(weights.sum[part],
                    _mm512_fmadd_ps(codes, _mm512_load_ps(weights.unit[part]), origins));
  }
  const auto rows = static_cast<__mmask16>((1U << tile.rows) - 1U);
  const __m512 sum = _mm512_maskz_loadu_ps(rows, tile.sum);
  _mm512_mask_storeu_ps(
      tile.sum, rows, _mm512_fmadd_ps(sum, _mm512_load_ps(weights.keep), _mm512_load_ps(of.total)));
}

// --- output -------------------------------------------------------------------------------------

// out[channel ... channel + 16 kGroups - 1] of kRows rows: out * keep + weights x V. kParts
// partitions of tokens, 1 or 2.
template <int kBits, int kRows, int kParts, int kGroups>
inline void add_values(const HackShape& shape, const Weights& weights, int row,
                       const std::byte* page, const float* sums, int channel, Prefetch& prefetch,
                       float* out) {
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
        for (int group = 0; group < kGroups; ++group) {
          const __m512i codes = codes_of<kBits>(word[group], i);
          for (int j = 0; j < kRows; ++j) {
            const __m512i four = broadcast(weights.bytes[row + j] + 16 * r + 4 * c);
            __m512i& dot = dots[j][part][group];
            dot = _mm512_dpbusd_epi32(dot, codes, four);
          }
        }
      }
    }
  }
  prefetch.line();
  for (int group = 0; group < kGroups; ++group) {
    const int at = channel + kLanes * group;
    for (int part = 0; part < kParts; ++part) {
      const std::byte* const entries =
          page + shape.layout.v_metadata + hack::kEntryBytes * (part * d + at);
      const Affine affine = load_affine(shape.v.meta, entries);
      const __m512 codes = _mm512_load_ps(sums + part * d + at);
      for (int j = 0; j < kRows; ++j) {
        const __m512 product = _mm512_fmadd_ps(
            _mm512_cvtepi32_ps(dots[j][part][group]), _mm512_set1_ps(weights.unit[part][row + j]),
            _mm512_mul_ps(codes, _mm512_set1_ps(weights.origin[part][row + j])));
        __m512 sum = _mm512_loadu_ps(out + j * d + at);
        if (part == 0) sum = _mm512_mul_ps(sum, _mm512_set1_ps(weights.keep[row + j]));
        sum = _mm512_fmadd_ps(affine.m, _mm512_set1_ps(weights.sum[part][row + j]), sum);
        _mm512_storeu_ps(out + j * d + at, _mm512_fmadd_ps(affine.s, product, sum));
      }
    }
  }
}

template <int kBits, int kParts, int kGroups>
inline void add_channels(const HackShape& shape, const Weights& weights, const HackItem& item,
                         const float* sums, int channel, Prefetch& prefetch) {
  StateTile& tile = *item.tile;
  const int d = shape.value_dim;
  const int whole_rows = tile.rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) {
    add_values<kBits, 4, kParts, kGroups>(shape, weights, row, item.page, sums, channel, prefetch,
                                          tile.out + row * d);
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    add_values<kBits, 1, kParts, kGroups>(shape, weights, row, item.page, sums, channel, prefetch,
                                          tile.out + row * d);
  }
}

template <int kBits, int kParts>
void add_page(const HackShape& shape, const Weights& weights, const HackItem& item,
              const float* sums, Prefetch& prefetch) {
  int channel = 0;
  for (; channel + 2 * kLanes <= shape.value_dim; channel += 2 * kLanes) {
    add_channels<kBits, kParts, 2>(shape, weights, item, sums, channel, prefetch);
  }
  if (channel < shape.value_dim) {
    add_channels<kBits, kParts, 1>(shape, weights, item, sums, channel, prefetch);
  }
}

void add_item(const HackShape& shape, const HackItem& item, const Weights& weights,
              Prefetch& prefetch) {
  alignas(64) float sums[kHackEntriesMax];
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
  alignas(64) Scores scores[2];
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

HackKernel hack_complete_kernel_avx512_bf16() { return {prepare, attend}; }

}  // namespace kvlane
