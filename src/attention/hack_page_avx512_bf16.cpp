// Attention on codes with AVX-512 and its dot product of 8-bit integers.
//
// Scores: lanes are tokens. A vector of words is 16 tokens times 4 bytes of 1, 2 or 4 registers; a
// mask, and perhaps a shift, makes a register the operand of VPDPBUSD, whose other one is four
// codes of a query, broadcast. Output: lanes are channels, the other operand is four weights,
// broadcast. So no sum crosses lanes, and what codes cost beyond the products is shared by the rows
// of a step, 4 or 1. Operations of a page, head_dim d, 2 bits a code, V by both: per row 2 d
// products; per step of rows 2 d masks, and shifts d / 2 for V and, with four rows, d / 2 for K;
// per row 4 x 6 from sums to scores of 64 tokens, and 8 from sums to output of 16 channels.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "attention/hack_codes_avx512_bf16.h"
#include "attention/hack_pages.h"
#include "attention/hack_weights_avx512_bf16.h"

namespace kvlane {
namespace {

using hack::Affine;
using hack::Axis;
using hack::broadcast;
using hack::codes_of;
using hack::kLanes;
using hack::load_affine;
using hack::load_numbers;
using hack::multiply_keys;
using hack::Sum;
using hack_pages::Batch;
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

// What all tokens of a page have in common: the products of kRows queries, 1 or 4, with m of the
// channels. Writes four numbers.
template <int kRows>
inline void find_bases(const HackShape& shape, const HackQuery& query, int row,
                       const std::byte* page, float* bases) {
  __m512 sums[4] = {};
  for (int i = 0; i < shape.key_dim; i += kLanes) {
    const __m512 m = load_numbers(shape.k.meta, page + shape.layout.k_metadata + 2 * i);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      sums[j] = _mm512_fmadd_ps(_mm512_load_ps(query.values[row + j] + i), m, sums[j]);
    }
  }
  _mm_store_ps(bases, hack::reduce_four<Sum>(sums));
}

// Of kRows rows from `row` on and kGroups times 16 tokens from `token` on.
template <int kBits, bool kBoth, int kRows, int kGroups>
inline void score_rows(const HackShape& shape, const HackQuery& query, int row,
                       const std::byte* page, int token, Prefetch& prefetch, const float* bases,
                       float (*scores)[kBlockTokens]) {
  const int d = shape.key_dim;
  const int partition = kBoth ? d : shape.k.partition;
  __m512 sums[kRows][kGroups];
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (auto& sum : sums[j]) sum = _mm512_set1_ps(kBoth ? bases[j] : 0.0F);
  }
  const std::byte* words = page + 4 * token;
  const std::byte* entries =
      page + shape.layout.k_metadata + (kBoth ? 2 * d + 2 * token : int{hack::kEntryBytes} * token);
  for (int first = 0, g = 0; first < d; first += partition, ++g) {
    const int end = d - first < partition ? d : first + partition;
    __m512i dots[kRows][kGroups];
    words = multiply_keys<kBits>(words, query, row, first, end, prefetch, dots);
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; ++group) {
      Affine affine;
      if constexpr (kBoth) {
        affine.s = load_numbers(shape.k.meta, entries + 32 * group);
      } else {
        affine = load_affine(shape.k.meta, entries + 64 * group);
      }
#pragma GCC unroll 4
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
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; ++group) {
      _mm512_store_ps(&scores[row + j][token + kLanes * group], sums[j][group]);
    }
  }
}

// --- output -------------------------------------------------------------------------------------

// Products of the weights of kRows rows with codes of V's channels, 16 kGroups of them whose first
// words begin at `words`; kParts partitions of tokens, 1 or 2.
template <int kBits, int kRows, int kParts, int kGroups>
[[gnu::always_inline]] inline void multiply_values(const std::byte* words, int value_dim,
                                                   const Weights& weights, int row,
                                                   Prefetch& prefetch,
                                                   __m512i (&dots)[kRows][kParts][kGroups]) {
  constexpr int kRegisters = 8 / kBits;
  // As in multiply_keys(); the codes are a signed operand here, so the highest do not stay.
  constexpr int kSums = kBits == 2 && kParts == 1 ? 2 : 1;
  __m512i sums[kSums][kRows][kParts][kGroups] = {};
#pragma GCC unroll 4
  for (int first = 0; first < hack::kValueRegisters; first += kRegisters) {
    // By pointers: where g++ 12 knows the number of rounds it stores sums in each of them.
    const std::byte* const end = words + std::ptrdiff_t{4} * hack::kValueClasses * value_dim;
    for (int c = 0; words != end; ++c, words += 4 * value_dim) {
      __m512i word[kGroups];
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        word[group] = _mm512_loadu_si512(words + 64 * group);
        prefetch.line();
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; ++i) {
        const int r = first + i;
        const int part = kParts == 1 ? 0 : r / 2;
        __m512i codes[kGroups];
#pragma GCC unroll 4
        for (int group = 0; group < kGroups; ++group) {
          codes[group] = codes_of<kBits, kSums>(word[group], i);
          if (kBits == 8) codes[group] = _mm512_xor_si512(codes[group], _mm512_set1_epi8(-128));
        }
#pragma GCC unroll 4
        for (int j = 0; j < kRows; ++j) {
          const __m512i four = broadcast(weights.bytes[row + j] + 16 * r + 4 * c);
#pragma GCC unroll 4
          for (int group = 0; group < kGroups; ++group) {
            __m512i& sum = sums[i % kSums][j][part][group];
            sum = _mm512_dpbusd_epi32(sum, four, codes[group]);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        __m512i& dot = dots[j][part][group];
        dot = sums[0][j][part][group];
        if (kSums == 1) continue;
        dot = _mm512_add_epi32(dot, _mm512_srai_epi32(sums[kSums - 1][j][part][group], kBits));
      }
    }
  }
}

// out[channel ... channel + 16 kGroups - 1] of kRows rows: out * keep + weights x V.
template <int kBits, bool kBoth, int kRows, int kParts, int kGroups>
inline void add_values(const HackShape& shape, const Weights& weights, int row,
                       const std::byte* page, int channel, Prefetch& prefetch, float* out) {
  const int d = shape.value_dim;
  __m512i dots[kRows][kParts][kGroups];
  multiply_values<kBits>(page + shape.layout.v_codes + 4 * channel, d, weights, row, prefetch,
                         dots);
  prefetch.line();
  const std::byte* const metadata = page + shape.layout.v_metadata;
#pragma GCC unroll 4
  for (int group = 0; group < kGroups; ++group) {
    const int at = channel + kLanes * group;
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Affine affine;
      if constexpr (kBoth) {
        affine.m = load_numbers(shape.v.meta, metadata + 2 * at);
      } else {
        affine = load_affine(shape.v.meta, metadata + hack::kEntryBytes * (part * d + at));
      }
#pragma GCC unroll 4
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

// A tile's rows, whose weights begin with first_row's.
template <int kBits, bool kBoth, int kParts, int kGroups>
inline void add_channels(const HackShape& shape, const Weights& weights, int first_row,
                         const std::byte* page, int channel, Prefetch& prefetch, StateTile& tile) {
  const int d = shape.value_dim;
  const int whole_rows = tile.rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) {
    add_values<kBits, kBoth, 4, kParts, kGroups>(shape, weights, first_row + row, page, channel,
                                                 prefetch, tile.out + row * d);
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    add_values<kBits, kBoth, 1, kParts, kGroups>(shape, weights, first_row + row, page, channel,
                                                 prefetch, tile.out + row * d);
  }
}

// See attention/hack_pages.h.
struct Avx512 {
  static constexpr int kBatchRows = hack::kRowsAtOnce;

  template <int kBits, bool kBoth>
  static void score(const HackShape& shape, const HackQuery& query, int rows, const std::byte* page,
                    Prefetch& prefetch, float (*scores)[kBlockTokens]) {
    alignas(16) float bases[4];
    const int whole_rows = rows / 4 * 4;
    for (int row = 0; row < whole_rows; row += 4) {
      if constexpr (kBoth) find_bases<4>(shape, query, row, page, bases);
      for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
        score_rows<kBits, kBoth, 4, 2>(shape, query, row, page, token, prefetch, bases, scores);
      }
    }
    for (int row = whole_rows; row < rows; ++row) {
      if constexpr (kBoth) find_bases<1>(shape, query, row, page, bases);
      score_rows<kBits, kBoth, 1, 4>(shape, query, row, page, 0, prefetch, bases, scores);
    }
  }

  template <bool kBoth>
  static void weigh(const HackShape& shape, const Batch& batch, float (*scores)[kBlockTokens],
                    Prefetch& prefetch, Weights& weights) {
    hack::weigh_batch<kBoth>(shape, batch, scores, prefetch, weights);
  }

  template <int kBits, bool kBoth, int kParts>
  static void add(const HackShape& shape, const Weights& weights, int first_row,
                  const std::byte* page, Prefetch& prefetch, StateTile& tile) {
    const int d = shape.value_dim;
    int channel = 0;
    // One row has registers for twice the channels of four.
    for (; tile.rows < 4 && channel + 4 * kLanes <= d; channel += 4 * kLanes) {
      for (int row = 0; row < tile.rows; ++row) {
        add_values<kBits, kBoth, 1, kParts, 4>(shape, weights, first_row + row, page, channel,
                                               prefetch, tile.out + row * d);
      }
    }
    for (; channel + 2 * kLanes <= d; channel += 2 * kLanes) {
      add_channels<kBits, kBoth, kParts, 2>(shape, weights, first_row, page, channel, prefetch,
                                            tile);
    }
    if (channel < d) {
      add_channels<kBits, kBoth, kParts, 1>(shape, weights, first_row, page, channel, prefetch,
                                            tile);
    }
  }
};

}  // namespace

HackKernel hack_kernel_avx512_bf16() { return {prepare, hack_pages::attend<Avx512>}; }

}  // namespace kvlane
