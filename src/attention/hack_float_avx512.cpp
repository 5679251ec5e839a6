// Attention in floats on pages of codes with AVX-512: with codes, or with values that are made in
// registers (attention/hack_float_page.h).
//
// As with integers, lanes are tokens for scores and channels for output, so no sum crosses lanes,
// and what a vector of codes costs is shared by the rows of a step, 8, 4 or 1. Codes of 2 and 4
// bits become floats by a look-up, which takes the lowest four bits of a lane and needs no mask:
// with 2 bits a shift serves two of them. Operations for 16 codes: 1 multiply-add a row; for all
// rows of a step 1.5 (2 bits), 2 (4 bits) or 3 to 4 (8 bits), and 1 more where values are made.
//
// 2-bit codes that are multiplied as they are take less: what two of them that share four bits give
// with a row's two factors is a table of 16 numbers, made by 2 operations for 64 lanes. A look-up
// and an addition then do what two multiply-adds did, and nothing is left to do before.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <type_traits>

#include "attention/exp2_avx512.h"
#include "attention/hack_float_page.h"
#include "attention/prefetch.h"
#include "quant/hack_avx512.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

using hack::Affine;
using hack::Axis;
using hack::kLanes;
using hack::load_affine;
using hack::load_numbers;

// --- codes --------------------------------------------------------------------------------------

constexpr float kMiddle[] = {0, 0, 1.5F, 0, 7.5F, 0, 0, 0, 127.5F};

// What four bits stand for: a code of 4 bits, or the lower or the upper one of two of 2 bits.
template <int kBits, bool kBoth, bool kUpper>
struct Table {
  alignas(64) float of[16];
  constexpr Table() : of() {
    for (int i = 0; i < 16; ++i) {
      const int code = kBits == 4 ? i : (kUpper ? i >> 2 : i & 3);
      of[i] = static_cast<float>(code) - (kBoth ? kMiddle[kBits] : 0);
    }
  }
};

// Codes of words as floats, counted from the middle code for `kBoth`.
template <int kBits, bool kBoth>
class Codes {
 public:
  Codes() {
    if constexpr (kBits < 8) {
      static constexpr Table<kBits, kBoth, false> kLower;
      static constexpr Table<kBits, kBoth, true> kUpper;
      lower_ = _mm512_load_ps(kLower.of);
      upper_ = _mm512_load_ps(kUpper.of);
    }
  }

  // Byte k of register r of 16 words.
  __attribute__((always_inline)) __m512 of(__m512i words, int r, int k) const {
    if constexpr (kBits == 8) {
      const __m512i last = _mm512_srli_epi32(words, 8 * k);
      const __m512i code = k == 3 ? last : _mm512_and_si512(last, _mm512_set1_epi32(255));
      const __m512 x = _mm512_cvtepi32_ps(code);
      return kBoth ? _mm512_sub_ps(x, _mm512_set1_ps(kMiddle[8])) : x;
    } else {
      const int bit = 8 * k + kBits * r;
      const __m512i shifted = bit < 4 ? words : _mm512_srli_epi32(words, bit / 4 * 4);
      return _mm512_permutexvar_ps(shifted, bit % 4 == 0 ? lower_ : upper_);
    }
  }

  // Of 2 bits: a table of what two codes that share four bits give with their factors.
  __attribute__((always_inline)) __m512 products(float of_lower, float of_upper) const {
    return _mm512_fmadd_ps(_mm512_set1_ps(of_lower), lower_,
                           _mm512_mul_ps(_mm512_set1_ps(of_upper), upper_));
  }

 private:
  __m512 lower_ = {};
  __m512 upper_ = {};
};

// Where what a code is multiplied with lies, counted from that of the word's first one: channels of
// K, tokens of V (quant/hack_layout.h).
struct KeyOrder {
  static constexpr int at(int r, int k) { return 4 * r + k; }
};
struct ValueOrder {
  static constexpr int at(int r, int k) { return 32 * (r / 2) + 2 * (r % 2) + 4 * (k / 2) + k % 2; }
};

// Values of the codes of a word. Lanes have m and s, or one of them, where all lanes of a code have
// the other: numbers in the order of what codes are multiplied with.
struct NoValues {
  __attribute__((always_inline)) __m512 of(__m512 code, int, int) const { return code; }
};
template <int kGroups>
struct ValuesByLane {
  const Affine* affine;  // [kGroups]
  __attribute__((always_inline)) __m512 of(__m512 code, int group, int) const {
    return _mm512_fmadd_ps(affine[group].s, code, affine[group].m);
  }
};
template <int kGroups>
struct KeysByBoth {
  const Affine* affine;
  const float* m;
  __attribute__((always_inline)) __m512 of(__m512 code, int group, int at) const {
    return _mm512_fmadd_ps(affine[group].s, code, _mm512_set1_ps(m[at]));
  }
};
template <int kGroups>
struct ValuesByBoth {
  const Affine* affine;
  const float* s;
  __attribute__((always_inline)) __m512 of(__m512 code, int group, int at) const {
    return _mm512_fmadd_ps(_mm512_set1_ps(s[at]), code, affine[group].m);
  }
};

// sums += factors x codes, or values, of registers kFirst ... kLast - 1 of kGroups x 16 words.
// factors: of kRows rows, each `stride` behind the other.
template <int kBits, class Order, int kFirst, int kLast, int kRows, int kGroups, bool kBoth,
          class Values>
__attribute__((always_inline)) inline void multiply_words(
    const std::byte* words, const Codes<kBits, kBoth>& codes, const Values& values,
    const float* factors, int stride, Prefetch& prefetch, __m512 (&sums)[kRows][kGroups]) {
  __m512i word[kGroups];
  for (int group = 0; group < kGroups; ++group) {
    word[group] = _mm512_loadu_si512(words + 64 * group);
    prefetch.line();
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 4
    for (int r = kFirst; r < kLast; ++r) {
      const int at = Order::at(r, k);
      __m512 x[kGroups];
      for (int group = 0; group < kGroups; ++group) {
        x[group] = values.of(codes.of(word[group], r, k), group, at);
      }
      for (int row = 0; row < kRows; ++row) {
        const __m512 factor = _mm512_set1_ps(factors[row * stride + at]);
        for (int group = 0; group < kGroups; ++group) {
          sums[row][group] = _mm512_fmadd_ps(factor, x[group], sums[row][group]);
        }
      }
    }
  }
}

// Codes of 2 bits, where no values are made of them, are multiplied two at a time.
template <int kBits, HackOperand kOperand>
constexpr bool by_pairs() {
  return kBits == 2 && kOperand == HackOperand::kCodes;
}

// Most rows of a step: as many as there are registers for, tables of pairs being one for each.
template <int kBits, HackOperand kOperand>
constexpr int rows_most() {
  return by_pairs<kBits, kOperand>() ? 4 : 8;
}

// The same for codes of 2 bits, as they are: two at a time, whose products with a row's factors are
// looked up and added.
template <class Order, int kFirst, int kLast, int kRows, int kGroups, bool kBoth>
__attribute__((always_inline)) inline void multiply_pairs(const std::byte* words,
                                                          const Codes<2, kBoth>& codes,
                                                          const float* factors, int stride,
                                                          Prefetch& prefetch,
                                                          __m512 (&sums)[kRows][kGroups]) {
  __m512i word[kGroups];
  for (int group = 0; group < kGroups; ++group) {
    word[group] = _mm512_loadu_si512(words + 64 * group);
    prefetch.line();
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 2
    for (int r = kFirst; r < kLast; r += 2) {
      __m512 products[kRows];
      for (int row = 0; row < kRows; ++row) {
        const float* const of_row = factors + row * stride;
        products[row] = codes.products(of_row[Order::at(r, k)], of_row[Order::at(r + 1, k)]);
        __asm__ volatile("" : "+v"(products[row]));
      }
      for (int group = 0; group < kGroups; ++group) {
        const __m512i pair = _mm512_srli_epi32(word[group], 8 * k + 2 * r);
        for (int row = 0; row < kRows; ++row) {
          __m512& sum = sums[row][group];
          sum = _mm512_add_ps(sum, _mm512_permutexvar_ps(pair, products[row]));
          // Else g++ 12 takes many look-ups before it adds, and has too few registers for them.
          __asm__ volatile("" : "+v"(sum));
        }
      }
    }
  }
}

// Calls `body` with the rows of a step, known while compiling, and the first of them. kMost: of a
// step, 4 or 8.
template <int kMost, class Body>
__attribute__((always_inline)) inline void in_steps(int rows, const Body& body) {
  int row = 0;
  for (; kMost == 8 && row + 8 <= rows; row += 8) body(std::integral_constant<int, 8>{}, row);
  for (; row + 4 <= rows; row += 4) body(std::integral_constant<int, 4>{}, row);
  for (; row < rows; ++row) body(std::integral_constant<int, 1>{}, row);
}

// --- the query ----------------------------------------------------------------------------------

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  const int partition = shape.k.axis == Axis::kBoth ? d : shape.k.partition;
  for (int row = 0; row < rows; ++row) {
    load_hack_query_avx512(shape, query, row, to.values[row]);
    for (int first = 0, g = 0; first < d; first += partition, ++g) {
      const int end = d - first < partition ? d : first + partition;
      __m512 sum = _mm512_setzero_ps();
      for (int i = first; i < end; i += kLanes) {
        sum = _mm512_add_ps(sum, _mm512_load_ps(to.values[row] + i));
      }
      to.sum[row][g] = _mm512_reduce_add_ps(sum);
    }
  }
}

// --- scores -------------------------------------------------------------------------------------

using Scores = float[kTileRows][kBlockTokens];

// m of K's channels, or s of V's tokens.
inline void load_all(hack::Meta meta, const std::byte* from, int count, float* to) {
  for (int i = 0; i < count; i += kLanes) {
    _mm512_store_ps(to + i, load_numbers(meta, from + 2 * i));
  }
}

// What all tokens of a page have in common, by both: a query's product with m of the channels.
inline float find_base(const float* q, const float* m, int head_dim) {
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < head_dim; i += kLanes) {
    sum = _mm512_fmadd_ps(_mm512_load_ps(q + i), _mm512_load_ps(m + i), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

// Of kRows rows from `row` on and kGroups x 16 tokens from `token` on. m: of channels, by both.
template <int kBits, bool kBoth, HackOperand kOperand, int kRows, int kGroups>
inline void score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
                  int token, const float* m, Prefetch& prefetch, Scores& scores) {
  constexpr bool kCodes = kOperand == HackOperand::kCodes;
  constexpr int kChannels = 32 / kBits;  // of a word
  const Codes<kBits, kBoth> codes;
  const int d = shape.key_dim;
  const int partition = kBoth ? d : shape.k.partition;
  const std::byte* words = page + 4 * token;
  const std::byte* entries =
      page + shape.layout.k_metadata + (kBoth ? 2 * d + 2 * token : int{hack::kEntryBytes} * token);
  __m512 totals[kRows][kGroups];
  for (int j = 0; j < kRows; ++j) {
    const float base = kBoth && kCodes ? find_base(query.values[row + j], m, d) : 0.0F;
    for (__m512& total : totals[j]) total = _mm512_set1_ps(base);
  }
  for (int first = 0, g = 0; first < d; first += partition, ++g) {
    Affine affine[kGroups];
    for (int group = 0; group < kGroups; ++group) {
      if constexpr (kBoth) {
        affine[group] = {_mm512_setzero_ps(), load_numbers(shape.k.meta, entries + 32 * group)};
      } else {
        affine[group] = load_affine(shape.k.meta, entries + 64 * group);
      }
    }
    __m512 sums[kRows][kGroups];
    for (auto& of_row : sums) {
      for (__m512& sum : of_row) sum = _mm512_setzero_ps();
    }
    const int end = d - first < partition ? d : first + partition;
    for (int i = first; i < end; i += kChannels, words += 4 * kBlockTokens) {
      const float* const q = query.values[row] + i;
      const auto multiply = [&](const auto& values) __attribute__((always_inline)) {
        multiply_words<kBits, KeyOrder, 0, 8 / kBits>(words, codes, values, q, kTileHeadDimMax,
                                                      prefetch, sums);
      };
      if constexpr (by_pairs<kBits, kOperand>()) {
        multiply_pairs<KeyOrder, 0, 4>(words, codes, q, kTileHeadDimMax, prefetch, sums);
      } else if constexpr (kCodes) {
        multiply(NoValues{});
      } else if constexpr (kBoth) {
        multiply(KeysByBoth<kGroups>{affine, m + i});
      } else {
        multiply(ValuesByLane<kGroups>{affine});
      }
    }
    for (int j = 0; j < kRows; ++j) {
      for (int group = 0; group < kGroups; ++group) {
        __m512& total = totals[j][group];
        if constexpr (!kCodes) {
          total = _mm512_add_ps(total, sums[j][group]);
        } else {
          if constexpr (!kBoth) {
            total = _mm512_fmadd_ps(affine[group].m, _mm512_set1_ps(query.sum[row + j][g]), total);
          }
          total = _mm512_fmadd_ps(affine[group].s, sums[j][group], total);
        }
      }
    }
    entries += hack::kEntryBytes * kBlockTokens;
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      _mm512_store_ps(&scores[row + j][token + kLanes * group], totals[j][group]);
    }
  }
}

template <int kBits, bool kBoth, HackOperand kOperand>
void score_page(const HackShape& shape, const HackItem& item, Prefetch& prefetch, Scores& scores) {
  alignas(64) float m[kTileHeadDimMax];
  if (kBoth) load_all(shape.k.meta, item.page + shape.layout.k_metadata, shape.key_dim, m);
  in_steps<rows_most<kBits, kOperand>()>(item.tile->rows, [&](auto rows, int row) {
    constexpr int kRows = decltype(rows)::value;
    constexpr int kGroups = kRows == 1 || by_pairs<kBits, kOperand>() ? 4 : 2;
    for (int token = 0; token < kBlockTokens; token += kGroups * kLanes) {
      score<kBits, kBoth, kOperand, kRows, kGroups>(shape, *item.query, row, item.page, token, m,
                                                    prefetch, scores);
    }
  });
}

// --- weights ------------------------------------------------------------------------------------

// What V's codes or values are multiplied with, for a tile's rows.
struct Weights {
  alignas(64) Scores of;
  float keep[kTileRows];                   // what the state so far is to be multiplied with
  float total[2][kTileRows];               // of tokens 0 ... 31 and 32 ... 63
  alignas(64) float scales[kBlockTokens];  // s of the tokens, by both
};

// Scores become weights beside the state's maximum, which moves; on codes by both times s of their
// token.
template <bool kScaled>
void weigh(Scores& scores, StateTile& tile, Prefetch& prefetch, Weights& weights) {
  for (int row = 0; row < tile.rows; ++row) {
    const float* const from = scores[row];
    __m512 x[4];
    for (int i = 0; i < 4; ++i) x[i] = _mm512_load_ps(from + kLanes * i);
    const float page_max =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
    const float max = page_max > tile.max[row] ? page_max : tile.max[row];
    for (int i = 0; i < 4; ++i) {
      // With those of the other stages, more than the lines of a page.
      prefetch.line();
      prefetch.line();
      x[i] = exp2_negative(_mm512_sub_ps(x[i], _mm512_set1_ps(max)));
    }
    const float low = _mm512_reduce_add_ps(_mm512_add_ps(x[0], x[1]));
    const float high = _mm512_reduce_add_ps(_mm512_add_ps(x[2], x[3]));
    for (int i = 0; i < 4; ++i) {
      if (kScaled) x[i] = _mm512_mul_ps(x[i], _mm512_load_ps(weights.scales + kLanes * i));
      _mm512_store_ps(weights.of[row] + kLanes * i, x[i]);
    }
    const float keep = _mm512_cvtss_f32(exp2_negative(_mm512_set1_ps(tile.max[row] - max)));
    weights.keep[row] = keep;
    weights.total[0][row] = low;
    weights.total[1][row] = high;
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + (low + high);
  }
}

// --- output -------------------------------------------------------------------------------------

// Of one partition of tokens: part kPart of kParts.
template <int kBits, bool kBoth, HackOperand kOperand, int kParts, int kPart, int kRows,
          int kGroups>
inline void add_part(const HackShape& shape, const Weights& weights, int row, const std::byte* page,
                     int channel, Prefetch& prefetch, float* out) {
  constexpr bool kCodes = kOperand == HackOperand::kCodes;
  constexpr int kRegisters = 8 / kBits;
  // Of all four registers, and of those in a word.
  constexpr int kCount = hack::kValueRegisters / kParts;
  constexpr int kInWord = kCount < kRegisters ? kCount : kRegisters;
  constexpr int kFirst = kCount * kPart % kRegisters;
  const Codes<kBits, kBoth> codes;
  const int d = shape.value_dim;
  const std::byte* const metadata = page + shape.layout.v_metadata;
  Affine affine[kGroups];
  for (int group = 0; group < kGroups; ++group) {
    const int at = channel + kLanes * group;
    if constexpr (kBoth) {
      affine[group] = {load_numbers(shape.v.meta, metadata + 2 * at), _mm512_set1_ps(1.0F)};
    } else {
      affine[group] = load_affine(shape.v.meta, metadata + hack::kEntryBytes * (kPart * d + at));
    }
  }
  __m512 sums[kRows][kGroups];
  for (auto& of_row : sums) {
    for (__m512& sum : of_row) sum = _mm512_setzero_ps();
  }
  for (int r = kCount * kPart; r < kCount * (kPart + 1); r += kInWord) {
    const std::byte* words =
        page + shape.layout.v_codes + 4 * (r / kRegisters * hack::kValueClasses * d + channel);
    for (int c = 0; c < hack::kValueClasses; ++c, words += 4 * d) {
      const int token = ValueOrder::at(r - kFirst, 0) + 8 * c;
      const float* const factors = weights.of[row] + token;
      const auto multiply = [&](const auto& values) __attribute__((always_inline)) {
        multiply_words<kBits, ValueOrder, kFirst, kFirst + kInWord>(words, codes, values, factors,
                                                                    kBlockTokens, prefetch, sums);
      };
      if constexpr (by_pairs<kBits, kOperand>()) {
        multiply_pairs<ValueOrder, kFirst, kFirst + kInWord>(words, codes, factors, kBlockTokens,
                                                             prefetch, sums);
      } else if constexpr (kCodes) {
        multiply(NoValues{});
      } else if constexpr (kBoth) {
        multiply(ValuesByBoth<kGroups>{affine, weights.scales + token});
      } else {
        multiply(ValuesByLane<kGroups>{affine});
      }
    }
  }
  for (int j = 0; j < kRows; ++j) {
    const float total = kParts == 1 ? weights.total[0][row + j] + weights.total[1][row + j]
                                    : weights.total[kPart][row + j];
    for (int group = 0; group < kGroups; ++group) {
      float* const at = out + j * d + channel + kLanes * group;
      __m512 sum = _mm512_loadu_ps(at);
      if (kPart == 0) sum = _mm512_mul_ps(sum, _mm512_set1_ps(weights.keep[row + j]));
      if constexpr (kCodes) {
        sum = _mm512_fmadd_ps(affine[group].m, _mm512_set1_ps(total), sum);
        sum = _mm512_fmadd_ps(affine[group].s, sums[j][group], sum);
      } else {
        sum = _mm512_add_ps(sums[j][group], sum);
      }
      _mm512_storeu_ps(at, sum);
    }
  }
}

template <int kBits, bool kBoth, HackOperand kOperand, int kParts, int kGroups>
inline void add_channels(const HackShape& shape, const Weights& weights, const HackItem& item,
                         int channel, Prefetch& prefetch) {
  StateTile& tile = *item.tile;
  in_steps<rows_most<kBits, kOperand>()>(tile.rows, [&](auto rows, int row) {
    constexpr int kRows = decltype(rows)::value;
    float* const out = tile.out + row * shape.value_dim;
    add_part<kBits, kBoth, kOperand, kParts, 0, kRows, kGroups>(shape, weights, row, item.page,
                                                                channel, prefetch, out);
    if constexpr (kParts == 2) {
      add_part<kBits, kBoth, kOperand, kParts, 1, kRows, kGroups>(shape, weights, row, item.page,
                                                                  channel, prefetch, out);
    }
  });
}

template <int kBits, bool kBoth, HackOperand kOperand, int kParts>
void add_page(const HackShape& shape, const Weights& weights, const HackItem& item,
              Prefetch& prefetch) {
  const int d = shape.value_dim;
  int channel = 0;
  // One row alone waits for its sums unless there are many; a table of pairs serves all of them.
  if (item.tile->rows < 4 || by_pairs<kBits, kOperand>()) {
    for (; channel + 4 * kLanes <= d; channel += 4 * kLanes) {
      add_channels<kBits, kBoth, kOperand, kParts, 4>(shape, weights, item, channel, prefetch);
    }
  }
  for (; channel + 2 * kLanes <= d; channel += 2 * kLanes) {
    add_channels<kBits, kBoth, kOperand, kParts, 2>(shape, weights, item, channel, prefetch);
  }
  if (channel < d) {
    add_channels<kBits, kBoth, kOperand, kParts, 1>(shape, weights, item, channel, prefetch);
  }
}

// --- a page -------------------------------------------------------------------------------------

using ScoreItem = void (*)(const HackShape&, const HackItem&, Prefetch&, Scores&);
using AddItem = void (*)(const HackShape&, const Weights&, const HackItem&, Prefetch&);

template <HackOperand kOperand, int kBits>
ScoreItem score_kernel(const hack::Plane& k) {
  return k.axis == Axis::kBoth ? score_page<kBits, true, kOperand>
                               : score_page<kBits, false, kOperand>;
}
template <HackOperand kOperand>
ScoreItem score_kernel(const hack::Plane& k) {
  switch (k.bits) {
    case 2: return score_kernel<kOperand, 2>(k);
    case 4: return score_kernel<kOperand, 4>(k);
    default: return score_kernel<kOperand, 8>(k);
  }
}

template <HackOperand kOperand, int kBits>
AddItem add_kernel(const hack::Plane& v) {
  if (v.axis == Axis::kBoth) return add_page<kBits, true, kOperand, 1>;
  return v.partition < kBlockTokens ? add_page<kBits, false, kOperand, 2>
                                    : add_page<kBits, false, kOperand, 1>;
}
template <HackOperand kOperand>
AddItem add_kernel(const hack::Plane& v) {
  switch (v.bits) {
    case 2: return add_kernel<kOperand, 2>(v);
    case 4: return add_kernel<kOperand, 4>(v);
    default: return add_kernel<kOperand, 8>(v);
  }
}

// Between scores and output lies a chain of steps that wait for each other. The scores of the next
// page fill that time.
template <HackOperand kOperand>
void attend(const HackShape& shape, std::span<const HackItem> items) {
  const ScoreItem score_item = score_kernel<kOperand>(shape.k);
  const AddItem add_item = add_kernel<kOperand>(shape.v);
  const bool both = shape.v.axis == Axis::kBoth;
  const auto take_scores = [&](const HackItem& item, Prefetch& prefetch, Scores& scores) {
    score_item(shape, item, prefetch, scores);
    hide_unseen(item, scores);
  };
  alignas(64) Scores scores[2];
  Weights weights;
  Prefetch first(items[0].next);
  take_scores(items[0], first, scores[0]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const HackItem& item = items[i];
    // What the page whose scores are taken now asks for.
    Prefetch prefetch(i + 1 < items.size() ? items[i + 1].next : std::span<const std::byte>());
    if (both) {
      load_all(shape.v.meta, item.page + shape.layout.v_metadata + 2 * shape.value_dim,
               kBlockTokens, weights.scales);
    }
    const bool scaled = both && kOperand == HackOperand::kCodes;
    scaled ? weigh<true>(scores[i % 2], *item.tile, prefetch, weights)
           : weigh<false>(scores[i % 2], *item.tile, prefetch, weights);
    if (i + 1 < items.size()) take_scores(items[i + 1], prefetch, scores[(i + 1) % 2]);
    add_item(shape, weights, item, prefetch);
  }
}

}  // namespace

void load_hack_query_avx512(const HackShape& shape, const PageQuery& query, int row, float* q) {
  const int d = shape.key_dim;
  for (int i = 0; i < d; i += kLanes) {
    __m512 sum = _mm512_setzero_ps();
    for (int part = 0; part < query.parts; ++part) {
      const auto* at =
          reinterpret_cast<const __m256i*>(query.q[row] + part * query.part_stride + i);
      const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(bits));
    }
    _mm512_store_ps(q + i, _mm512_mul_ps(sum, _mm512_set1_ps(query.scale)));
  }
  if (shape.mix) mix_channels_avx512(q, 1, d);
}

HackKernel hack_float_kernel_avx512(HackOperand operand) {
  return {prepare, operand == HackOperand::kCodes ? attend<HackOperand::kCodes>
                                                  : attend<HackOperand::kValues>};
}

}  // namespace kvlane
