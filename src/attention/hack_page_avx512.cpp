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
#include "attention/hack_page.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

using hack::Axis;
using hack::Meta;

constexpr int kLanes = 16;

// Asks for the next memory line by line, one for each line that is used, so that it comes while the
// kernel computes and never more than the core can have under way.
class Prefetch {
 public:
  explicit Prefetch(std::span<const std::byte> next)
      : at_(reinterpret_cast<const char*>(next.data())), lines_(next.size() / 64) {}

  __attribute__((always_inline)) void line() {
    if (lines_ == 0) return;
    _mm_prefetch(at_, _MM_HINT_T1);
    at_ += 64;
    --lines_;
  }

 private:
  const char* at_;
  std::size_t lines_;
};

// 16 numbers of the metadata's type.
inline __m512 load_numbers(Meta meta, const std::byte* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if (meta == Meta::kFp16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// m and s of 16 tokens or channels.
struct Affine {
  __m512 m, s;
};
inline Affine load_affine(Meta meta, const std::byte* entries) {
  const __m512i pairs = _mm512_loadu_si512(entries);
  if (meta == Meta::kFp16) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)),
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))};
  }
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(pairs, high))};
}

// Codes of register r of a word, as bytes.
template <int kBits>
inline __m512i codes_of(__m512i words, int r) {
  if constexpr (kBits == 8) {
    return words;
  } else {
    const __m512i shifted = r == 0 ? words : _mm512_srli_epi32(words, kBits * r);
    return _mm512_and_si512(shifted, _mm512_set1_epi8((1 << kBits) - 1));
  }
}

inline __m512i broadcast(const void* four_bytes) {
  int word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// --- the query ----------------------------------------------------------------------------------

void load_query(const HackShape& shape, const PageQuery& query, int row, float* q) {
  const int d = shape.head_dim;
  for (int i = 0; i < d; i += kLanes) {
    __m512 sum = _mm512_setzero_ps();
    for (int part = 0; part < query.parts; ++part) {
      const auto* at = reinterpret_cast<const __m256i*>(query.q[row] + part * d + i);
      const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(bits));
    }
    _mm512_store_ps(q + i, _mm512_mul_ps(sum, _mm512_set1_ps(query.scale)));
  }
  if (shape.mix) mix_channels(q, 1, d);
}

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.head_dim;
  const int partition = shape.k.axis == Axis::kBoth ? d : shape.k.partition;
  const float middle = static_cast<float>((1 << shape.k.bits) - 1) / 2;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    load_query(shape, query, row, q);
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
  const int parts = shape.head_dim / kLanes;
  for (int i = 0; i < parts; ++i) {
    m[i] = load_numbers(shape.k.meta, page + shape.layout.k_metadata + 2 * kLanes * i);
  }
  for (int row = 0; row < rows; ++row) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < parts; ++i) {
      sum = _mm512_fmadd_ps(_mm512_load_ps(query.values[row] + kLanes * i), m[i], sum);
    }
    bases[row] = _mm512_reduce_add_ps(sum);
  }
}

// Codes of register r where they are in a word: times 2^(kBits * r).
template <int kBits>
inline __m512i codes_in_place(__m512i words, int r) {
  return _mm512_and_si512(words,
                          _mm512_set1_epi8(static_cast<char>(((1 << kBits) - 1) << (kBits * r))));
}

// Of kRows rows from `row` on and kGroups times 16 tokens from `token` on.
template <int kBits, bool kBoth, int kRows, int kGroups>
inline void score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
                  int token, Prefetch& prefetch, const float* bases,
                  float (*scores)[kBlockTokens]) {
  constexpr int kRegisters = 8 / kBits;
  constexpr int kChannels = 32 / kBits;  // of a word
  // Vectors shift slowly. For one row it pays to leave codes where they are and to have a sum for
  // each register: multiples of its power of two, shifted once in the end.
  constexpr int kSums = kRows == 1 ? kRegisters : 1;
  const int d = shape.head_dim;
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
    __m512i dots[kSums][kRows][kGroups];
    for (auto& of_register : dots) {
      for (auto& of_row : of_register) {
        for (auto& dot : of_row) dot = _mm512_setzero_si512();
      }
    }
    for (int i = first; i < end; i += kChannels, words += 4 * kBlockTokens) {
      __m512i word[kGroups];
      for (int group = 0; group < kGroups; ++group) {
        word[group] = _mm512_loadu_si512(words + 64 * group);
        prefetch.line();
      }
      for (int r = 0; r < kRegisters; ++r) {
        __m512i codes[kGroups];
        for (int group = 0; group < kGroups; ++group) {
          codes[group] =
              kSums > 1 ? codes_in_place<kBits>(word[group], r) : codes_of<kBits>(word[group], r);
        }
        for (int j = 0; j < kRows; ++j) {
          const __m512i four = broadcast(&query.codes[row + j][i + 4 * r]);
          for (int group = 0; group < kGroups; ++group) {
            __m512i& dot = dots[kSums > 1 ? r : 0][j][group];
            dot = _mm512_dpbusd_epi32(dot, codes[group], four);
          }
        }
      }
    }
    for (int r = 1; r < kSums; ++r) {
      for (int group = 0; group < kGroups; ++group) {
        dots[0][0][group] =
            _mm512_add_epi32(dots[0][0][group], _mm512_srai_epi32(dots[r][0][group], kBits * r));
      }
    }
    for (int group = 0; group < kGroups; ++group) {
      Affine affine;
      if constexpr (kBoth) {
        affine.s = load_numbers(shape.k.meta, entries + 32 * group);
      } else {
        affine = load_affine(shape.k.meta, entries + 64 * group);
      }
      for (int j = 0; j < kRows; ++j) {
        const __m512 product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[0][j][group]),
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

// A row's weights, four bytes for each register and class of V, and what they are worth. Of tokens
// 0 ... 31 and 32 ... 63, or first of all tokens:
struct Weights {
  alignas(64) std::uint8_t bytes[kBlockTokens];
  float keep;      // what the state so far is to be multiplied with
  float unit;      // of a code, beside the state's maximum
  float total[2];  // of all weights: what m is multiplied with
  float shift[2];  // what sums of products are short of, as codes are taken from their middle
};

// Byte 16 r + 4 c + k is token value_token(r, c, k).
inline __m512i value_order() {
  struct Table {
    alignas(64) std::uint8_t tokens[kBlockTokens];
    constexpr Table() : tokens() {
      for (int i = 0; i < kBlockTokens; ++i) {
        tokens[i] = static_cast<std::uint8_t>(hack::value_token(i / 16, i / 4 % 4, i % 4));
      }
    }
  };
  static constexpr Table kTable;
  return _mm512_load_si512(kTable.tokens);
}

// s of V's tokens, as weigh() wants them.
struct Scales {
  alignas(64) float of_token[kBlockTokens];
};
inline void load_scales(const HackShape& shape, const std::byte* page, Scales& scales) {
  for (int i = 0; i < kBlockTokens; i += kLanes) {
    const std::byte* const from = page + shape.layout.v_metadata + 2 * (shape.head_dim + i);
    _mm512_store_ps(scales.of_token + i, load_numbers(shape.v.meta, from));
  }
}

inline void store_bytes(const __m512 (&x)[4], __m512 inverse, std::uint8_t* bytes) {
  for (int i = 0; i < 4; ++i) {
    const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inverse));
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes + kLanes * i), _mm512_cvtepi32_epi8(code));
  }
}

// `middle`: twice what a code is less in the operand of products than in values.
template <bool kBoth>
inline void weigh(const float* scores, const Scales& scales, int middle, bool halves, float& max,
                  float& sum, Weights& weights) {
  __m512 x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm512_load_ps(scores + kLanes * i);
  const float page_max =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
  const float new_max = page_max > max ? page_max : max;
  __m512 total = _mm512_setzero_ps();
  __m512 most = _mm512_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    x[i] = exp2_negative(_mm512_sub_ps(x[i], _mm512_set1_ps(page_max)));
    if constexpr (kBoth) {
      total = _mm512_add_ps(total, x[i]);
      x[i] = _mm512_mul_ps(x[i], _mm512_load_ps(scales.of_token + kLanes * i));
      most = _mm512_max_ps(most, x[i]);
    }
  }
  const float greatest = kBoth ? _mm512_reduce_max_ps(most) : 1.0F;
  store_bytes(x, _mm512_set1_ps(greatest > 0 ? 255.0F / greatest : 0.0F), weights.bytes);
  const __m512i bytes = _mm512_permutexvar_epi8(value_order(), _mm512_load_si512(weights.bytes));
  _mm512_store_si512(weights.bytes, bytes);
  const __m512 factors = exp2_negative(
      _mm512_mask_blend_ps(1, _mm512_set1_ps(page_max - new_max), _mm512_set1_ps(max - new_max)));
  weights.keep = _mm512_cvtss_f32(factors);
  const float page_unit = _mm_cvtss_f32(_mm_movehdup_ps(_mm512_castps512_ps128(factors)));
  weights.unit = page_unit * greatest / 255.0F;
  // Registers 0 and 1 are tokens 0 ... 31, the low half of the bytes.
  const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_set1_epi8(1));
  const int all = _mm512_reduce_add_epi32(sums);
  const int first = halves ? _mm512_mask_reduce_add_epi32(0x00ff, sums) : all;
  const int codes[2] = {first, all - first};
  for (int part = 0; part < 2; ++part) {
    weights.total[part] = static_cast<float>(codes[part]) * weights.unit;
    weights.shift[part] = static_cast<float>(codes[part] * middle) * 0.5F * weights.unit;
  }
  const float page_total =
      kBoth ? _mm512_reduce_add_ps(total) * page_unit : static_cast<float>(all) * weights.unit;
  if constexpr (kBoth) weights.total[0] = page_total;
  max = new_max;
  sum = sum * weights.keep + page_total;
}

// --- output -------------------------------------------------------------------------------------

// out[channel ... channel + 15] of kRows rows: out * keep + weights x V. kParts partitions of
// tokens, 1 or 2.
template <int kBits, bool kBoth, int kRows, int kParts>
inline void add_values(const HackShape& shape, const Weights* weights, const std::byte* page,
                       int channel, Prefetch& prefetch, float* out) {
  constexpr int kRegisters = 8 / kBits;
  const int d = shape.head_dim;
  const std::byte* words = page + shape.layout.v_codes + 4 * channel;
  __m512i dots[kRows][kParts];
  for (auto& of_row : dots) {
    for (auto& dot : of_row) dot = _mm512_setzero_si512();
  }
  for (int first = 0; first < hack::kValueRegisters; first += kRegisters) {
    for (int c = 0; c < hack::kValueClasses; ++c, words += 4 * d) {
      const __m512i word = _mm512_loadu_si512(words);
      prefetch.line();
      for (int i = 0; i < kRegisters; ++i) {
        const int r = first + i;
        const int part = kParts == 1 ? 0 : r / 2;
        __m512i codes = codes_of<kBits>(word, i);
        // The product's second operand is signed.
        if constexpr (kBits == 8) codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        for (int j = 0; j < kRows; ++j) {
          dots[j][part] = _mm512_dpbusd_epi32(dots[j][part],
                                              broadcast(weights[j].bytes + 16 * r + 4 * c), codes);
        }
      }
    }
  }
  prefetch.line();
  const std::byte* const metadata = page + shape.layout.v_metadata;
  for (int part = 0; part < kParts; ++part) {
    Affine affine;
    if constexpr (kBoth) {
      affine.m = load_numbers(shape.v.meta, metadata + 2 * channel);
    } else {
      affine = load_affine(shape.v.meta, metadata + hack::kEntryBytes * (part * d + channel));
    }
    for (int j = 0; j < kRows; ++j) {
      const Weights& of = weights[j];
      const __m512 dot = _mm512_cvtepi32_ps(dots[j][part]);
      const __m512 unit = _mm512_set1_ps(of.unit);
      const __m512 shift = _mm512_set1_ps(of.shift[part]);
      float* const at = out + j * d + channel;
      __m512 sum = _mm512_loadu_ps(at);
      if (part == 0) sum = _mm512_mul_ps(sum, _mm512_set1_ps(of.keep));
      sum = _mm512_fmadd_ps(affine.m, _mm512_set1_ps(of.total[part]), sum);
      const __m512 product = _mm512_fmadd_ps(dot, unit, shift);
      sum = kBoth ? _mm512_add_ps(product, sum) : _mm512_fmadd_ps(affine.s, product, sum);
      _mm512_storeu_ps(at, sum);
    }
  }
}

// --- a page -------------------------------------------------------------------------------------

template <int kBits, bool kBoth>
void score_page(const HackShape& shape, const HackQuery& query, int rows, const std::byte* page,
                Prefetch& prefetch, float (*scores)[kBlockTokens]) {
  float bases[kTileRows];
  if (kBoth) find_bases(shape, query, rows, page, bases);
  const int whole_rows = rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) {
    for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
      score<kBits, kBoth, 4, 2>(shape, query, row, page, token, prefetch, bases, scores);
    }
  }
  for (int row = whole_rows; row < rows; ++row) {
    score<kBits, kBoth, 1, 4>(shape, query, row, page, 0, prefetch, bases, scores);
  }
}

template <int kBits, bool kBoth, int kParts>
void add_page_values(const HackShape& shape, const Weights* weights, const std::byte* page,
                     Prefetch& prefetch, StateTile& tile) {
  const int d = shape.head_dim;
  const int whole_rows = tile.rows / 4 * 4;
  for (int channel = 0; channel < d; channel += kLanes) {
    for (int row = 0; row < whole_rows; row += 4) {
      add_values<kBits, kBoth, 4, kParts>(shape, weights + row, page, channel, prefetch,
                                          tile.out + row * d);
    }
    for (int row = whole_rows; row < tile.rows; ++row) {
      add_values<kBits, kBoth, 1, kParts>(shape, weights + row, page, channel, prefetch,
                                          tile.out + row * d);
    }
  }
}

// Calls `body` with the bits and with what else is known while compiling.
template <class Body>
inline void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 2: body.template operator()<2>(); break;
    case 4: body.template operator()<4>(); break;
    default: body.template operator()<8>(); break;
  }
}

void attend(const HackShape& shape, const HackQuery& query, const std::byte* page,
            std::span<const std::byte> next, StateTile& tile) {
  alignas(64) float scores[kTileRows][kBlockTokens];
  Weights weights[kTileRows];
  Prefetch prefetch(next);
  const bool both = shape.k.axis == Axis::kBoth;
  with_bits(shape.k.bits, [&]<int kBits>() {
    both ? score_page<kBits, true>(shape, query, tile.rows, page, prefetch, scores)
         : score_page<kBits, false>(shape, query, tile.rows, page, prefetch, scores);
  });
  const bool halves = !both && shape.v.partition < kBlockTokens;
  const int middle = (shape.v.bits == 8 ? 256 : 0) - (both ? (1 << shape.v.bits) - 1 : 0);
  Scales scales;
  if (both) load_scales(shape, page, scales);
  for (int row = 0; row < tile.rows; ++row) {
    prefetch.line();
    float& max = tile.max[row];
    float& sum = tile.sum[row];
    both ? weigh<true>(scores[row], scales, middle, halves, max, sum, weights[row])
         : weigh<false>(scores[row], scales, middle, halves, max, sum, weights[row]);
  }
  with_bits(shape.v.bits, [&]<int kBits>() {
    if (both) {
      add_page_values<kBits, true, 1>(shape, weights, page, prefetch, tile);
    } else if (halves) {
      add_page_values<kBits, false, 2>(shape, weights, page, prefetch, tile);
    } else {
      add_page_values<kBits, false, 1>(shape, weights, page, prefetch, tile);
    }
  });
}

}  // namespace

HackKernel hack_kernel_avx512() { return {prepare, attend}; }

}  // namespace kvlane
