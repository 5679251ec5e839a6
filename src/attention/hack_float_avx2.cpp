// Attention in floats on pages of codes with AVX2: with codes, or with values that are made in
// registers (attention/hack_float_page.h).
//
// The way of hack_float_avx512.cpp in halves of its vectors: lanes are tokens for scores and
// channels for output, and what a vector of codes costs is shared by the rows of a step, 4 or 1.
// Codes of 2 bits become floats by a look-up among 8, which takes the lowest three bits of a lane
// and needs no mask; others are masked as bytes, spread to lanes and converted. Operations for 8
// codes: 1 multiply-add a row; for all rows of a step 2 (2 and 8 bits) or 2.5 (4 bits), 1 more for
// codes that are counted from the middle of more than 2 bits, and 1 more where values are made.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <type_traits>

#include "attention/exp2_avx2.h"
#include "attention/hack_float_page.h"
#include "attention/lanes_avx2.h"
#include "attention/prefetch.h"
#include "quant/hack_avx2.h"

namespace kvlane {
namespace {

using hack::Axis;
using hack::avx2::Affine;
using hack::avx2::kLanes;
using hack::avx2::load_affine;
using hack::avx2::load_numbers;

// --- codes --------------------------------------------------------------------------------------

// Codes of words as floats, counted from the middle code for `kBoth`.
template <int kBits, bool kBoth>
class Codes {
 public:
  // Register r of 8 words, for of() to take bytes from.
  static __attribute__((always_inline)) __m256i of_register(__m256i words, int r) {
    if constexpr (kBits == 8) return words;
    const __m256i shifted = r == 0 ? words : _mm256_srli_epi32(words, kBits * r);
    // A look-up needs no more.
    if constexpr (kBits == 2) return shifted;
    return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>((1 << kBits) - 1)));
  }

  // Byte k of it.
  static __attribute__((always_inline)) __m256 of(__m256i of_register, int k) {
    if constexpr (kBits == 2) {
      constexpr float kMiddle = kBoth ? 1.5F : 0.0F;
      const __m256 values = _mm256_setr_ps(0 - kMiddle, 1 - kMiddle, 2 - kMiddle, 3 - kMiddle,
                                           0 - kMiddle, 1 - kMiddle, 2 - kMiddle, 3 - kMiddle);
      const __m256i index = k == 0 ? of_register : _mm256_srli_epi32(of_register, 8 * k);
      return _mm256_permutevar8x32_ps(values, index);
    } else {
      const int none = static_cast<int>(0x80808000);
      const __m256i byte = _mm256_broadcastsi128_si256(
          _mm_setr_epi32(none + k, none + 4 + k, none + 8 + k, none + 12 + k));
      const __m256 x = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(of_register, byte));
      constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2;
      return kBoth ? _mm256_sub_ps(x, _mm256_set1_ps(kMiddle)) : x;
    }
  }
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
  __attribute__((always_inline)) __m256 of(__m256 code, int, int) const { return code; }
};
template <int kGroups>
struct ValuesByLane {
  const Affine* affine;  // [kGroups]
  __attribute__((always_inline)) __m256 of(__m256 code, int group, int) const {
    return _mm256_fmadd_ps(affine[group].s, code, affine[group].m);
  }
};
template <int kGroups>
struct KeysByBoth {
  const Affine* affine;
  const float* m;
  __attribute__((always_inline)) __m256 of(__m256 code, int group, int at) const {
    return _mm256_fmadd_ps(affine[group].s, code, _mm256_set1_ps(m[at]));
  }
};
template <int kGroups>
struct ValuesByBoth {
  const Affine* affine;
  const float* s;
  __attribute__((always_inline)) __m256 of(__m256 code, int group, int at) const {
    return _mm256_fmadd_ps(_mm256_set1_ps(s[at]), code, affine[group].m);
  }
};

// sums += factors x codes, or values, of registers kFirst ... kLast - 1 of kGroups x 8 words.
// factors: of kRows rows, each `stride` behind the other.
template <int kBits, bool kBoth, class Order, int kFirst, int kLast, int kRows, int kGroups,
          class Values>
__attribute__((always_inline)) inline void multiply_words(const std::byte* words,
                                                          const Values& values,
                                                          const float* factors, int stride,
                                                          Prefetch& prefetch,
                                                          __m256 (&sums)[kRows][kGroups]) {
  for (int group = 0; group < kGroups; group += 2) prefetch.line();
#pragma GCC unroll 4
  for (int r = kFirst; r < kLast; ++r) {
    __m256i codes[kGroups];
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; ++group) {
      codes[group] = Codes<kBits, kBoth>::of_register(hack::avx2::load(words + 32 * group), r);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const int at = Order::at(r, k);
      __m256 x[kGroups];
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        x[group] = values.of(Codes<kBits, kBoth>::of(codes[group], k), group, at);
      }
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const __m256 factor = _mm256_set1_ps(factors[row * stride + at]);
#pragma GCC unroll 4
        for (int group = 0; group < kGroups; ++group) {
          sums[row][group] = _mm256_fmadd_ps(factor, x[group], sums[row][group]);
        }
      }
    }
  }
}

// Calls `body` with the rows of a step, known while compiling, and the first of them.
template <class Body>
__attribute__((always_inline)) inline void in_steps(int rows, const Body& body) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) body(std::integral_constant<int, 4>{}, row);
  for (; row < rows; ++row) body(std::integral_constant<int, 1>{}, row);
}

// --- the query ----------------------------------------------------------------------------------

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  const int partition = shape.k.axis == Axis::kBoth ? d : shape.k.partition;
  for (int row = 0; row < rows; ++row) {
    load_hack_query_avx2(shape, query, row, to.values[row]);
    for (int first = 0, g = 0; first < d; first += partition, ++g) {
      const int end = d - first < partition ? d : first + partition;
      __m256 sum = _mm256_setzero_ps();
      for (int i = first; i < end; i += kLanes) {
        sum = _mm256_add_ps(sum, _mm256_load_ps(to.values[row] + i));
      }
      to.sum[row][g] = sum_of_lanes(sum);
    }
  }
}

// --- scores -------------------------------------------------------------------------------------

using Scores = float[kTileRows][kBlockTokens];

// m of K's channels, or s of V's tokens.
inline void load_all(hack::Meta meta, const std::byte* from, int count, float* to) {
  for (int i = 0; i < count; i += kLanes) {
    _mm256_store_ps(to + i, load_numbers(meta, from + 2 * i));
  }
}

// What all tokens of a page have in common, by both: a query's product with m of the channels.
inline float find_base(const float* q, const float* m, int head_dim) {
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < head_dim; i += kLanes) {
    sum = _mm256_fmadd_ps(_mm256_load_ps(q + i), _mm256_load_ps(m + i), sum);
  }
  return sum_of_lanes(sum);
}

// m and s of kGroups x 8 tokens or channels, whose entries begin at `entries`; s alone by both.
template <bool kBoth, int kGroups>
inline void load_key_affine(hack::Meta meta, const std::byte* entries, Affine (&affine)[kGroups]) {
  for (int group = 0; group < kGroups; ++group) {
    if constexpr (kBoth) {
      affine[group] = {_mm256_setzero_ps(), load_numbers(meta, entries + 2 * kLanes * group)};
    } else {
      affine[group] = load_affine(meta, entries + hack::kEntryBytes * kLanes * group);
    }
  }
}

// Of kRows rows from `row` on and kGroups x 8 tokens from `token` on. m: of channels, by both.
template <int kBits, bool kBoth, HackOperand kOperand, int kRows, int kGroups>
inline void score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
                  int token, const float* m, Prefetch& prefetch, Scores& scores) {
  constexpr bool kCodes = kOperand == HackOperand::kCodes;
  constexpr int kChannels = 32 / kBits;  // of a word
  const int d = shape.key_dim;
  const int partition = kBoth ? d : shape.k.partition;
  const std::byte* words = page + 4 * token;
  const std::byte* entries =
      page + shape.layout.k_metadata + (kBoth ? 2 * d + 2 * token : int{hack::kEntryBytes} * token);
  __m256 totals[kRows][kGroups];
  for (int j = 0; j < kRows; ++j) {
    const float base = kBoth && kCodes ? find_base(query.values[row + j], m, d) : 0.0F;
    for (__m256& total : totals[j]) total = _mm256_set1_ps(base);
  }
  for (int first = 0, g = 0; first < d; first += partition, ++g) {
    Affine affine[kGroups];
    load_key_affine<kBoth>(shape.k.meta, entries, affine);
    __m256 sums[kRows][kGroups];
    for (auto& of_row : sums) {
      for (__m256& sum : of_row) sum = _mm256_setzero_ps();
    }
    const int end = d - first < partition ? d : first + partition;
    for (int i = first; i < end; i += kChannels, words += 4 * kBlockTokens) {
      const auto multiply = [&](const auto& values) __attribute__((always_inline)) {
        multiply_words<kBits, kBoth, KeyOrder, 0, 8 / kBits>(words, values, query.values[row] + i,
                                                             kTileHeadDimMax, prefetch, sums);
      };
      if constexpr (kCodes) {
        multiply(NoValues{});
      } else if constexpr (kBoth) {
        multiply(KeysByBoth<kGroups>{affine, m + i});
      } else {
        multiply(ValuesByLane<kGroups>{affine});
      }
    }
    for (int j = 0; j < kRows; ++j) {
      for (int group = 0; group < kGroups; ++group) {
        __m256& total = totals[j][group];
        if constexpr (!kCodes) {
          total = _mm256_add_ps(total, sums[j][group]);
        } else {
          if constexpr (!kBoth) {
            total = _mm256_fmadd_ps(affine[group].m, _mm256_set1_ps(query.sum[row + j][g]), total);
          }
          total = _mm256_fmadd_ps(affine[group].s, sums[j][group], total);
        }
      }
    }
    entries += hack::kEntryBytes * kBlockTokens;
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      _mm256_store_ps(&scores[row + j][token + kLanes * group], totals[j][group]);
    }
  }
}

// Groups of 8 tokens or channels: one row alone waits for its sums unless there are many.
template <int kRows>
constexpr int kGroupsOf = kRows == 1 ? 4 : 2;

template <int kBits, bool kBoth, HackOperand kOperand>
void score_page(const HackShape& shape, const HackItem& item, Prefetch& prefetch, Scores& scores) {
  alignas(32) float m[kTileHeadDimMax];
  if (kBoth) load_all(shape.k.meta, item.page + shape.layout.k_metadata, shape.key_dim, m);
  in_steps(item.tile->rows, [&](auto rows, int row) {
    constexpr int kRows = decltype(rows)::value;
    constexpr int kGroups = kGroupsOf<kRows>;
    for (int token = 0; token < kBlockTokens; token += kGroups * kLanes) {
      score<kBits, kBoth, kOperand, kRows, kGroups>(shape, *item.query, row, item.page, token, m,
                                                    prefetch, scores);
    }
  });
}

// --- weights ------------------------------------------------------------------------------------

// What V's codes or values are multiplied with, for a tile's rows.
struct Weights {
  alignas(32) Scores of;
  float keep[kTileRows];                   // what the state so far is to be multiplied with
  float total[2][kTileRows];               // of tokens 0 ... 31 and 32 ... 63
  alignas(32) float scales[kBlockTokens];  // s of the tokens, by both
};

// Scores become weights beside the state's maximum, which moves; on codes by both times s of their
// token.
template <bool kScaled>
void weigh(const Scores& scores, StateTile& tile, Prefetch& prefetch, Weights& weights) {
  constexpr int kHalf = kBlockTokens / 2;
  for (int row = 0; row < tile.rows; ++row) {
    const float* const from = scores[row];
    __m256 most = _mm256_load_ps(from);
    for (int i = kLanes; i < kBlockTokens; i += kLanes) {
      most = _mm256_max_ps(most, _mm256_load_ps(from + i));
    }
    const float page_max = greatest_lane(most);
    const float max = page_max > tile.max[row] ? page_max : tile.max[row];
    float total[2];
    for (int half = 0; half < 2; ++half) {
      __m256 sum = _mm256_setzero_ps();
      for (int i = kHalf * half; i < kHalf * (half + 1); i += kLanes) {
        // With those of the other stages, more than the lines of a page.
        prefetch.line();
        __m256 x = exp2_negative(_mm256_sub_ps(_mm256_load_ps(from + i), _mm256_set1_ps(max)));
        sum = _mm256_add_ps(sum, x);
        if (kScaled) x = _mm256_mul_ps(x, _mm256_load_ps(weights.scales + i));
        _mm256_store_ps(weights.of[row] + i, x);
      }
      total[half] = sum_of_lanes(sum);
    }
    const float keep = _mm256_cvtss_f32(exp2_negative(_mm256_set1_ps(tile.max[row] - max)));
    weights.keep[row] = keep;
    weights.total[0][row] = total[0];
    weights.total[1][row] = total[1];
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + (total[0] + total[1]);
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
  const int d = shape.value_dim;
  const std::byte* const metadata = page + shape.layout.v_metadata;
  Affine affine[kGroups];
  for (int group = 0; group < kGroups; ++group) {
    const int at = channel + kLanes * group;
    if constexpr (kBoth) {
      affine[group] = {load_numbers(shape.v.meta, metadata + 2 * at), _mm256_set1_ps(1.0F)};
    } else {
      affine[group] = load_affine(shape.v.meta, metadata + hack::kEntryBytes * (kPart * d + at));
    }
  }
  __m256 sums[kRows][kGroups];
  for (auto& of_row : sums) {
    for (__m256& sum : of_row) sum = _mm256_setzero_ps();
  }
  for (int r = kCount * kPart; r < kCount * (kPart + 1); r += kInWord) {
    const std::byte* words =
        page + shape.layout.v_codes + 4 * (r / kRegisters * hack::kValueClasses * d + channel);
    for (int c = 0; c < hack::kValueClasses; ++c, words += 4 * d) {
      const int token = ValueOrder::at(r - kFirst, 0) + 8 * c;
      const auto multiply = [&](const auto& values) __attribute__((always_inline)) {
        multiply_words<kBits, kBoth, ValueOrder, kFirst, kFirst + kInWord>(
            words, values, weights.of[row] + token, kBlockTokens, prefetch, sums);
      };
      if constexpr (kCodes) {
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
      __m256 sum = _mm256_loadu_ps(at);
      if (kPart == 0) sum = _mm256_mul_ps(sum, _mm256_set1_ps(weights.keep[row + j]));
      if constexpr (kCodes) {
        sum = _mm256_fmadd_ps(affine[group].m, _mm256_set1_ps(total), sum);
        sum = _mm256_fmadd_ps(affine[group].s, sums[j][group], sum);
      } else {
        sum = _mm256_add_ps(sums[j][group], sum);
      }
      _mm256_storeu_ps(at, sum);
    }
  }
}

template <int kBits, bool kBoth, HackOperand kOperand, int kParts, int kRows, int kGroups>
inline void add_channels(const HackShape& shape, const Weights& weights, const HackItem& item,
                         int row, int channel, Prefetch& prefetch) {
  float* const out = item.tile->out + row * shape.value_dim;
  add_part<kBits, kBoth, kOperand, kParts, 0, kRows, kGroups>(shape, weights, row, item.page,
                                                              channel, prefetch, out);
  if constexpr (kParts == 2) {
    add_part<kBits, kBoth, kOperand, kParts, 1, kRows, kGroups>(shape, weights, row, item.page,
                                                                channel, prefetch, out);
  }
}

// head_dim is a multiple of 16.
template <int kBits, bool kBoth, HackOperand kOperand, int kParts>
void add_page(const HackShape& shape, const Weights& weights, const HackItem& item,
              Prefetch& prefetch) {
  in_steps(item.tile->rows, [&](auto rows, int row) {
    constexpr int kRows = decltype(rows)::value;
    constexpr int kGroups = kGroupsOf<kRows>;
    int channel = 0;
    for (; channel + kGroups * kLanes <= shape.value_dim; channel += kGroups * kLanes) {
      add_channels<kBits, kBoth, kOperand, kParts, kRows, kGroups>(shape, weights, item, row,
                                                                   channel, prefetch);
    }
    if (channel < shape.value_dim) {
      add_channels<kBits, kBoth, kOperand, kParts, kRows, 2>(shape, weights, item, row, channel,
                                                             prefetch);
    }
  });
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
  alignas(32) Scores scores[2];
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

HackKernel hack_float_kernel_avx2(HackOperand operand) {
  return {prepare, operand == HackOperand::kCodes ? attend<HackOperand::kCodes>
                                                  : attend<HackOperand::kValues>};
}

}  // namespace kvlane
