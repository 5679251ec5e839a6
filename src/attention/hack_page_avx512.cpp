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

namespace kvlane {
namespace {

using hack::Meta;

constexpr int kLanes = 16;

// Asks for the next memory a few lines at a time, so that it comes while the kernel computes.
class Prefetch {
 public:
  explicit Prefetch(std::span<const std::byte> next)
      : at_(reinterpret_cast<const char*>(next.data())), end_(at_ + next.size()) {}

  __attribute__((always_inline)) void lines(int count) {
    for (int i = 0; i < count && at_ < end_; ++i, at_ += 64) _mm_prefetch(at_, _MM_HINT_T0);
  }

 private:
  const char* at_;
  const char* end_;
};

// m and s of 16 tokens or channels.
struct Affine {
  __m512 m, s;
};
template <Meta kMeta>
inline Affine load_affine(const std::byte* entries) {
  const __m512i pairs = _mm512_loadu_si512(entries);
  if constexpr (kMeta == Meta::kBf16) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(
                _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
  } else {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)),
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))};
  }
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

inline __m512 load_query(const PageQuery& query, int row, int head_dim, int i) {
  __m512 sum = _mm512_setzero_ps();
  for (int part = 0; part < query.parts; ++part) {
    const auto* at = reinterpret_cast<const __m256i*>(query.q[row] + part * head_dim + i);
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16);
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(bits));
  }
  return _mm512_mul_ps(sum, _mm512_set1_ps(query.scale));
}

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.head_dim;
  const float middle = static_cast<float>((1 << shape.k.bits) - 1) / 2;
  for (int row = 0; row < rows; ++row) {
    __m512 q[kTileHeadDimMax / kLanes];
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < d; i += kLanes) {
      q[i / kLanes] = load_query(query, row, d, i);
      most = _mm512_max_ps(most, _mm512_abs_ps(q[i / kLanes]));
    }
    const float greatest = _mm512_reduce_max_ps(most);
    const float scale = greatest / 127.0F;
    const __m512 inverse = _mm512_set1_ps(greatest > 0 ? 127.0F / greatest : 0.0F);
    to.scale[row] = scale;
    for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
      const int end = d - first < shape.k.partition ? d : first + shape.k.partition;
      __m512 sum = _mm512_setzero_ps();
      __m512i codes = _mm512_setzero_si512();
      for (int i = first; i < end; i += kLanes) {
        const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(q[i / kLanes], inverse));
        _mm_store_si128(reinterpret_cast<__m128i*>(&to.codes[row][i]), _mm512_cvtepi32_epi8(code));
        sum = _mm512_add_ps(sum, q[i / kLanes]);
        codes = _mm512_add_epi32(codes, code);
      }
      const float total = _mm512_reduce_add_ps(sum);
      to.sum[row][g] = total;
      to.centre[row][g] =
          middle * (total - scale * static_cast<float>(_mm512_reduce_add_epi32(codes)));
    }
  }
}

// --- scores -------------------------------------------------------------------------------------

// Of kRows rows from `row` on and kGroups times 16 tokens from `token` on.
template <int kBits, Meta kMeta, int kRows, int kGroups>
inline void score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
                  int token, Prefetch& prefetch, float (*scores)[kBlockTokens]) {
  constexpr int kRegisters = 8 / kBits;
  constexpr int kChannels = 32 / kBits;  // of a word
  const int d = shape.head_dim;
  __m512 sums[kRows][kGroups];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  }
  const std::byte* words = page + 4 * token;
  const std::byte* entries = page + shape.layout.k_metadata + hack::kEntryBytes * token;
  for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
    const int end = d - first < shape.k.partition ? d : first + shape.k.partition;
    __m512i dots[kRows][kGroups];
    for (auto& of_row : dots) {
      for (auto& dot : of_row) dot = _mm512_setzero_si512();
    }
    for (int i = first; i < end; i += kChannels, words += 4 * kBlockTokens) {
      __m512i word[kGroups];
      for (int group = 0; group < kGroups; ++group) {
        word[group] = _mm512_loadu_si512(words + 64 * group);
      }
      prefetch.lines(2 * kGroups);
      for (int r = 0; r < kRegisters; ++r) {
        __m512i codes[kGroups];
        for (int group = 0; group < kGroups; ++group)
          codes[group] = codes_of<kBits>(word[group], r);
        for (int j = 0; j < kRows; ++j) {
          const __m512i four = broadcast(&query.codes[row + j][i + 4 * r]);
          for (int group = 0; group < kGroups; ++group) {
            dots[j][group] = _mm512_dpbusd_epi32(dots[j][group], codes[group], four);
          }
        }
      }
    }
    for (int group = 0; group < kGroups; ++group) {
      const Affine affine = load_affine<kMeta>(entries + 64 * group);
      for (int j = 0; j < kRows; ++j) {
        const __m512 product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[j][group]),
                                               _mm512_set1_ps(query.scale[row + j]),
                                               _mm512_set1_ps(query.centre[row + j][g]));
        const __m512 base =
            _mm512_fmadd_ps(affine.m, _mm512_set1_ps(query.sum[row + j][g]), sums[j][group]);
        sums[j][group] = _mm512_fmadd_ps(affine.s, product, base);
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

// A row's weights, four bytes for each register and class of V, and what they are worth.
struct Weights {
  alignas(64) std::uint8_t bytes[kBlockTokens];
  int sum[2];  // of tokens 0 ... 31 and 32 ... 63
  float unit;  // of one, beside the state's maximum
  float keep;  // what the state so far is to be multiplied with
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

inline void weigh(const float* scores, float& max, float& sum, Weights& weights) {
  __m512 score[4];
  for (int i = 0; i < 4; ++i) score[i] = _mm512_load_ps(scores + kLanes * i);
  const float page_max = _mm512_reduce_max_ps(
      _mm512_max_ps(_mm512_max_ps(score[0], score[1]), _mm512_max_ps(score[2], score[3])));
  const float new_max = page_max > max ? page_max : max;
  __m512i bytes = _mm512_setzero_si512();
  for (int i = 0; i < 4; ++i) {
    const __m512 weight = exp2_negative(_mm512_sub_ps(score[i], _mm512_set1_ps(page_max)));
    const __m128i codes =
        _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(weight, _mm512_set1_ps(255.0F))));
    _mm_store_si128(reinterpret_cast<__m128i*>(weights.bytes + kLanes * i), codes);
  }
  bytes = _mm512_permutexvar_epi8(value_order(), _mm512_load_si512(weights.bytes));
  _mm512_store_si512(weights.bytes, bytes);
  // Registers 0 and 1 are tokens 0 ... 31, the low half of the bytes.
  const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_set1_epi8(1));
  weights.sum[0] = _mm512_mask_reduce_add_epi32(0x00ff, sums);
  weights.sum[1] = _mm512_mask_reduce_add_epi32(0xff00, sums);
  const __m512 factors = exp2_negative(
      _mm512_mask_blend_ps(1, _mm512_set1_ps(page_max - new_max), _mm512_set1_ps(max - new_max)));
  alignas(64) float factor[kLanes];
  _mm512_store_ps(factor, factors);
  weights.keep = factor[0];
  weights.unit = factor[1] / 255.0F;
  max = new_max;
  sum = sum * weights.keep + static_cast<float>(weights.sum[0] + weights.sum[1]) * weights.unit;
}

// --- output -------------------------------------------------------------------------------------

// out[channel ... channel + 15] of kRows rows: out * keep + weights x V. kParts partitions of
// tokens, 1 or 2.
template <int kBits, Meta kMeta, int kRows, int kParts>
inline void add_values(const HackShape& shape, const Weights* weights, const std::byte* page,
                       int channel, float* out) {
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
  for (int j = 0; j < kRows; ++j) {
    __m512 total =
        _mm512_mul_ps(_mm512_loadu_ps(out + j * d + channel), _mm512_set1_ps(weights[j].keep));
    for (int part = 0; part < kParts; ++part) {
      const Affine affine = load_affine<kMeta>(page + shape.layout.v_metadata +
                                               hack::kEntryBytes * (part * d + channel));
      const int sum = kParts == 1 ? weights[j].sum[0] + weights[j].sum[1] : weights[j].sum[part];
      __m512i dot = dots[j][part];
      if constexpr (kBits == 8) dot = _mm512_add_epi32(dot, _mm512_set1_epi32(128 * sum));
      const __m512 unit = _mm512_set1_ps(weights[j].unit);
      total = _mm512_fmadd_ps(affine.m, _mm512_set1_ps(static_cast<float>(sum) * weights[j].unit),
                              total);
      total = _mm512_fmadd_ps(affine.s, _mm512_mul_ps(_mm512_cvtepi32_ps(dot), unit), total);
    }
    _mm512_storeu_ps(out + j * d + channel, total);
  }
}

// --- a page -------------------------------------------------------------------------------------

template <int kKeyBits, int kValueBits, Meta kMeta, int kParts>
void attend(const HackShape& shape, const HackQuery& query, const std::byte* page,
            std::span<const std::byte> next, StateTile& tile) {
  const int d = shape.head_dim;
  alignas(64) float scores[kTileRows][kBlockTokens];
  Weights weights[kTileRows];
  Prefetch prefetch(next);
  const int whole_rows = tile.rows / 4 * 4;
  for (int row = 0; row < whole_rows; row += 4) {
    for (int token = 0; token < kBlockTokens; token += 2 * kLanes) {
      score<kKeyBits, kMeta, 4, 2>(shape, query, row, page, token, prefetch, scores);
    }
  }
  for (int row = whole_rows; row < tile.rows; ++row) {
    score<kKeyBits, kMeta, 1, 4>(shape, query, row, page, 0, prefetch, scores);
  }
  for (int row = 0; row < tile.rows; ++row) {
    weigh(scores[row], tile.max[row], tile.sum[row], weights[row]);
  }
  for (int channel = 0; channel < d; channel += kLanes) {
    prefetch.lines(4);
    for (int row = 0; row < whole_rows; row += 4) {
      add_values<kValueBits, kMeta, 4, kParts>(shape, weights + row, page, channel,
                                               tile.out + row * d);
    }
    for (int row = whole_rows; row < tile.rows; ++row) {
      add_values<kValueBits, kMeta, 1, kParts>(shape, weights + row, page, channel,
                                               tile.out + row * d);
    }
  }
}

using Attend = decltype(HackKernel::attend);

template <int kKeyBits, int kValueBits, Meta kMeta>
Attend choose_parts(const HackShape& shape) {
  return shape.v.partition == kBlockTokens ? attend<kKeyBits, kValueBits, kMeta, 1>
                                           : attend<kKeyBits, kValueBits, kMeta, 2>;
}

template <int kKeyBits, int kValueBits>
Attend choose_meta(const HackShape& shape) {
  return shape.k.meta == Meta::kFp16 ? choose_parts<kKeyBits, kValueBits, Meta::kFp16>(shape)
                                     : choose_parts<kKeyBits, kValueBits, Meta::kBf16>(shape);
}

template <int kKeyBits>
Attend choose_value_bits(const HackShape& shape) {
  switch (shape.v.bits) {
    case 2: return choose_meta<kKeyBits, 2>(shape);
    case 4: return choose_meta<kKeyBits, 4>(shape);
    default: return choose_meta<kKeyBits, 8>(shape);
  }
}

}  // namespace

HackKernel hack_kernel_avx512(const HackShape& shape) {
  switch (shape.k.bits) {
    case 2: return {prepare, choose_value_bits<2>(shape)};
    case 4: return {prepare, choose_value_bits<4>(shape)};
    default: return {prepare, choose_value_bits<8>(shape)};
  }
}

}  // namespace kvlane
