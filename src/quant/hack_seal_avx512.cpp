// Rows of floats to pages of codes with AVX-512.
//
// Tokens go by eights: what K packs into words as 2 times 4 tokens, V as two registers of a class.
// A vector is 16 channels of a token. By both axes a group of 8 tokens is read three times, for the
// sums that scales follow from, for codes, and for errors; by token twice; by channel all tokens of
// a partition are. About 20 operations for 16 values; numbers of 8 tokens are computed at once.
// Products and sums that are rounded each must not be fused, so they are not where the scalar code
// does not say std::fma.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/hack_avx512.h"
#include "quant/hack_draw_avx512.h"
#include "quant/hack_kernels.h"

namespace kvlane::hack {
namespace {

constexpr int kTokens = 8;  // at a time

// As in the scalar code.
constexpr float kRound = 0x1.8p23F;
constexpr int kRoundBits = 0x4b400000;
constexpr float kStepOf2Bits = 0.996F;
constexpr float kStepMin = 0x1p-24F;
constexpr float kNear = 4;

template <int kBits>
constexpr float kMost = (1 << kBits) - 1;
template <int kBits>
constexpr float kMiddle = kMost<kBits> / 2;

// --- codes to words -----------------------------------------------------------------------------

inline void store_quarter(std::byte* words, int word, __m128i four) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 4 * word), four);
}

// Codes of channels `channel` ... + 15 of tokens `token` ... + 7, as integers, to words of K.
template <int kBits>
inline void store_key_codes(const SealJob& job, int token, int channel,
                            const __m512i (&codes)[kTokens]) {
  const int first = channel * kBits / 32 * kBlockTokens + token;
#pragma GCC unroll 2
  for (int i = 0; i < kTokens; i += 4) {
    // Quarter r, lane j: channels 4 r ... 4 r + 3 of token j, the bytes of register r.
    __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(codes[i], codes[i + 1]),
                                        _mm512_packus_epi32(codes[i + 2], codes[i + 3]));
    if constexpr (kBits == 8) {
      store_quarter(job.codes, first + i, _mm512_castsi512_si128(bytes));
      store_quarter(job.codes, first + i + kBlockTokens, _mm512_extracti32x4_epi32(bytes, 1));
      store_quarter(job.codes, first + i + 2 * kBlockTokens, _mm512_extracti32x4_epi32(bytes, 2));
      store_quarter(job.codes, first + i + 3 * kBlockTokens, _mm512_extracti32x4_epi32(bytes, 3));
    } else if constexpr (kBits == 4) {
      const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
      bytes = _mm512_sllv_epi32(bytes, shifts);
      const __m512i words = _mm512_or_si512(bytes, _mm512_shuffle_i32x4(bytes, bytes, 0xb1));
      store_quarter(job.codes, first + i, _mm512_castsi512_si128(words));
      store_quarter(job.codes, first + i + kBlockTokens, _mm512_extracti32x4_epi32(words, 2));
    } else {
      const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
      bytes = _mm512_sllv_epi32(bytes, shifts);
      const __m256i half =
          _mm256_or_si256(_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1));
      store_quarter(job.codes, first + i,
                    _mm_or_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
    }
  }
}

inline __m512i bytes_of(__m512i a, __m512i b, __m512i c, __m512i d) {
  return _mm512_or_si512(_mm512_or_si512(a, _mm512_slli_epi32(b, 8)),
                         _mm512_or_si512(_mm512_slli_epi32(c, 16), _mm512_slli_epi32(d, 24)));
}

// The same to words of V. For 2 bits, the first half of the tokens comes before the second.
template <int kBits>
inline void store_value_codes(const SealJob& job, int token, int channel,
                              const __m512i (&codes)[kTokens]) {
  // value_token(): registers 2 half and 2 half + 1 of class c.
  const int half = token / 32;
  const int c = token / 8 % kValueClasses;
  const __m512i even = bytes_of(codes[0], codes[1], codes[4], codes[5]);
  const __m512i odd = bytes_of(codes[2], codes[3], codes[6], codes[7]);
  const auto words = [&](int i) {
    return job.codes + 4 * (std::size_t(kValueClasses * i + c) * job.head_dim + channel);
  };
  if constexpr (kBits == 8) {
    _mm512_storeu_si512(words(2 * half), even);
    _mm512_storeu_si512(words(2 * half + 1), odd);
  } else if constexpr (kBits == 4) {
    _mm512_storeu_si512(words(half), _mm512_or_si512(even, _mm512_slli_epi32(odd, 4)));
  } else {
    __m512i word = _mm512_or_si512(even, _mm512_slli_epi32(odd, 2));
    if (half == 1) {
      word = _mm512_or_si512(_mm512_loadu_si512(words(0)), _mm512_slli_epi32(word, 4));
    }
    _mm512_storeu_si512(words(0), word);
  }
}

template <int kBits, Part kPart>
inline void store_codes(const SealJob& job, int token, int channel,
                        const __m512i (&codes)[kTokens]) {
  if constexpr (kPart == Part::kKeys) {
    store_key_codes<kBits>(job, token, channel, codes);
  } else {
    store_value_codes<kBits>(job, token, channel, codes);
  }
}

// --- numbers of tokens --------------------------------------------------------------------------

struct Add {
  static __m256 of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
};
struct Min {
  static __m256 of(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
};
struct Max {
  static __m256 of(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
};

// The 16 lanes of 8 vectors, halves onto halves: 8 numbers, in the lower half of a vector whose
// upper one is zero.
template <class Op>
inline __m512 reduce(const __m512 (&of)[kTokens]) {
  __m256 eight[kTokens];
#pragma GCC unroll 8
  for (int i = 0; i < kTokens; ++i) {
    eight[i] = Op::of(_mm512_castps512_ps256(of[i]), _mm512_extractf32x8_ps(of[i], 1));
  }
  __m256 four[4];  // of tokens i and i + 4
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    four[i] = Op::of(_mm256_permute2f128_ps(eight[i], eight[i + 4], 0x20),
                     _mm256_permute2f128_ps(eight[i], eight[i + 4], 0x31));
  }
  const auto onto = [](__m256 a, __m256 b) {
    return Op::of(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  };
  const __m256 low = onto(four[0], four[1]);
  const __m256 high = onto(four[2], four[3]);
  return _mm512_zextps256_ps512(
      Op::of(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)));
}

// The nearest number of the type, half to even. Of finite ones.
inline __m256i nearest(Meta meta, __m512 x) {
  if (meta == Meta::kFp16) return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, half), 16));
}

// --- both axes ----------------------------------------------------------------------------------

// What a group of tokens needs of the page, and room for it.
struct Work {
  alignas(64) float middles[kHeadDimMax];  // of channels
  alignas(64) float errors[kHeadDimMax];   // of channels, summed over tokens
  alignas(64) float values[kHeadDimMax / kLanes][kTokens][kLanes];  // code - middle
};

// As middle_of_channel() of the scalar code.
inline __m512 middles_of_channels(const float* rows, int d) {
  __m512 least = _mm512_load_ps(rows);
  __m512 greatest = least;
  __m512 sum = least;
  for (int token = 1; token < kBlockTokens; ++token) {
    const __m512 x = _mm512_load_ps(rows + std::size_t(token) * d);
    least = _mm512_min_ps(x, least);
    greatest = _mm512_max_ps(x, greatest);
    sum = _mm512_add_ps(sum, x);
  }
  const __m512 mean = _mm512_div_ps(_mm512_sub_ps(_mm512_sub_ps(sum, least), greatest),
                                    _mm512_set1_ps(kBlockTokens - 2));
  __m512 distances = _mm512_setzero_ps();
  __m512 farthest = _mm512_setzero_ps();
  for (int token = 0; token < kBlockTokens; ++token) {
    const __m512 x = _mm512_load_ps(rows + std::size_t(token) * d);
    const __m512 distance = _mm512_abs_ps(_mm512_sub_ps(x, mean));
    distances = _mm512_add_ps(distances, distance);
    farthest = _mm512_max_ps(distance, farthest);
  }
  const __m512 others =
      _mm512_div_ps(_mm512_sub_ps(distances, farthest), _mm512_set1_ps(kBlockTokens - 1));
  const __m512 near = _mm512_mul_ps(others, _mm512_set1_ps(kNear));
  const __m512 ends = _mm512_add_ps(_mm512_max_ps(_mm512_sub_ps(mean, near), least),
                                    _mm512_min_ps(_mm512_add_ps(mean, near), greatest));
  return _mm512_mul_ps(ends, _mm512_set1_ps(0.5F));
}

void find_middles(const SealJob& job, float* middles) {
  for (int channel = 0; channel < job.head_dim; channel += kLanes) {
    _mm512_store_ps(middles + channel, middles_of_channels(job.rows + channel, job.head_dim));
  }
}

// y of 16 channels of a token.
inline __m512 rest(const float* rows, std::size_t at, __m512 middle) {
  return _mm512_sub_ps(_mm512_load_ps(rows + at), middle);
}

// Sums of squares of the tokens' rests, and their steps.
template <int kBits>
inline __m512 measure(const float* rows, int d, const float* middles, __m512& step) {
  __m512 sums[kTokens];
  __m512 greatest[kTokens];
#pragma GCC unroll 8
  for (int j = 0; j < kTokens; ++j) sums[j] = greatest[j] = _mm512_setzero_ps();
  for (int channel = 0; channel < d; channel += kLanes) {
    const __m512 middle = _mm512_load_ps(middles + channel);
#pragma GCC unroll 8
    for (int j = 0; j < kTokens; ++j) {
      const __m512 y = rest(rows, std::size_t(j) * d + channel, middle);
      sums[j] = _mm512_add_ps(sums[j], _mm512_mul_ps(y, y));
      if constexpr (kBits != 2) greatest[j] = _mm512_max_ps(greatest[j], _mm512_abs_ps(y));
    }
  }
  const __m512 squares = reduce<Add>(sums);
  if constexpr (kBits == 2) {
    const __m512 mean = _mm512_div_ps(squares, _mm512_set1_ps(static_cast<float>(d)));
    step = _mm512_mul_ps(_mm512_sqrt_ps(mean), _mm512_set1_ps(kStepOf2Bits));
  } else {
    step = _mm512_div_ps(reduce<Max>(greatest), _mm512_set1_ps(kMiddle<kBits>));
  }
  return squares;
}

// The codes of 8 tokens; what they stand for goes to `work`, and the sums of y times that are the
// result.
template <int kBits, Part kPart>
inline __m512 code_tokens(const SealJob& job, int token, const float* inverses, Work& work) {
  const int d = job.head_dim;
  const float* const rows = job.rows + std::size_t(token) * d;
  const __m512 origin = _mm512_set1_ps(kMiddle<kBits>);
  __m512 sums[kTokens];
#pragma GCC unroll 8
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int channel = 0; channel < d; channel += kLanes) {
    const __m512 middle = _mm512_load_ps(work.middles + channel);
    __m512i codes[kTokens];
#pragma GCC unroll 8
    for (int j = 0; j < kTokens; ++j) {
      const __m512 y = rest(rows, std::size_t(j) * d + channel, middle);
      __m512 code = _mm512_fmadd_ps(y, _mm512_set1_ps(inverses[j]), origin);
      // More bits have a step that leaves none outside.
      if constexpr (kBits == 2) {
        code = _mm512_max_ps(code, _mm512_setzero_ps());
        code = _mm512_min_ps(code, _mm512_set1_ps(kMost<kBits>));
      }
      codes[j] = _mm512_cvtps_epi32(code);
      const __m512 value = _mm512_sub_ps(_mm512_cvtepi32_ps(codes[j]), origin);
      sums[j] = _mm512_add_ps(sums[j], _mm512_mul_ps(y, value));
      _mm512_store_ps(work.values[channel / kLanes][j], value);
    }
    store_codes<kBits, kPart>(job, token, channel, codes);
  }
  return reduce<Add>(sums);
}

// In units of their tokens' scales, one over which are the weights.
inline void add_errors(const SealJob& job, int token, const float* scales, const float* weights,
                       Work& work) {
  const int d = job.head_dim;
  for (int channel = 0; channel < d; channel += kLanes) {
    const float* const rows = job.rows + std::size_t(token) * d + channel;
    __m512 sum = _mm512_load_ps(work.errors + channel);
#pragma GCC unroll 8
    for (int j = 0; j < kTokens; ++j) {
      const __m512 value = _mm512_load_ps(work.values[channel / kLanes][j]);
      const __m512 x = _mm512_load_ps(rows + std::size_t(j) * d);
      const __m512 error = _mm512_fnmadd_ps(_mm512_set1_ps(scales[j]), value, x);
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(weights[j]), error));
    }
    _mm512_store_ps(work.errors + channel, sum);
  }
}

template <int kBits, Part kPart>
void seal_both(const SealJob& job) {
  const int d = job.head_dim;
  const Meta meta = job.plane.meta;
  const __m512 zero = _mm512_setzero_ps();
  alignas(64) float numbers[kLanes];
  alignas(64) float weights[kLanes];
  float weight = 0;  // of all tokens so far
  Work work;
  find_middles(job, work.middles);
  for (int channel = 0; channel < d; channel += kLanes) {
    _mm512_store_ps(work.errors + channel, zero);
  }
  for (int token = 0; token < kBlockTokens; token += kTokens) {
    __m512 step;
    const __m512 squares = measure<kBits>(job.rows + std::size_t(token) * d, d, work.middles, step);
    const __mmask16 some = _mm512_cmp_ps_mask(step, _mm512_set1_ps(kStepMin), _CMP_GE_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0F), step);
    _mm512_store_ps(numbers, inverse);
    const __m512 products = code_tokens<kBits, kPart>(job, token, numbers, work);
    const __mmask16 coded = _mm512_cmp_ps_mask(inverse, zero, _CMP_NEQ_OQ);
    const __m256i scale = nearest(meta, _mm512_maskz_div_ps(coded, squares, products));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(job.metadata + scales_offset(d) + std::size_t{2} * token),
        _mm256_castsi256_si128(scale));
    const __m512 s = to_floats(meta, scale);
    const __mmask16 scaled = _mm512_cmp_ps_mask(s, zero, _CMP_GT_OQ);
    _mm512_store_ps(numbers, s);
    _mm512_store_ps(weights, _mm512_maskz_div_ps(scaled, _mm512_set1_ps(1.0F), s));
    for (int j = 0; j < kTokens; ++j) weight += weights[j];
    add_errors(job, token, numbers, weights, work);
  }
  const __m512 all = _mm512_set1_ps(weight);
  for (int channel = 0; channel < d; channel += kLanes) {
    const __m512 mean = weight > 0 ? _mm512_div_ps(_mm512_load_ps(work.errors + channel), all)
                                   : _mm512_load_ps(work.middles + channel);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(job.metadata + std::size_t{2} * channel),
                        nearest(meta, mean));
  }
}

// --- partitions ---------------------------------------------------------------------------------

// The greatest number of the type that is not above x, and the least scale that is not below
// x >= 0; zeros are +0.
inline __m256i not_above(Meta meta, __m512 x) {
  x = _mm512_add_ps(x, _mm512_setzero_ps());
  if (meta == Meta::kFp16) return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m512i bits = _mm512_castps_si512(x);
  // Away from zero for negative numbers.
  const __m512i up = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(0xffff));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, up), 16));
}
inline __m256i scale_not_below(Meta meta, __m512 x) {
  x = _mm512_add_ps(x, _mm512_setzero_ps());
  if (meta == Meta::kFp16) return _mm512_cvtps_ph(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i up = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0xffff)), 16);
  const __mmask16 some = _mm512_test_epi32_mask(bits, bits);
  // One over the least normal number is finite.
  return _mm512_cvtepi32_epi16(_mm512_maskz_max_epi32(some, up, _mm512_set1_epi32(0x0080)));
}

// Entries of 16 partitions, m and s in 32 bits each, and what codes are made with.
struct Entries {
  __m512i pairs;
  __m512 m;
  __m512 inverse;
};

template <int kBits>
inline Entries make_entries(Meta meta, __m512 least, __m512 greatest) {
  const __m256i minimum = not_above(meta, least);
  const __m512 m = to_floats(meta, minimum);
  const __m512 exact = _mm512_div_ps(_mm512_sub_ps(greatest, m), _mm512_set1_ps(kMost<kBits>));
  const __m256i scale = scale_not_below(meta, exact);
  const __m512 s = to_floats(meta, scale);
  const __mmask16 some = _mm512_cmp_ps_mask(s, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  return {_mm512_or_si512(_mm512_cvtepu16_epi32(minimum),
                          _mm512_slli_epi32(_mm512_cvtepu16_epi32(scale), 16)),
          m, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0F), s)};
}

// s is not below the step that fits, so no code is beyond the last one.
inline __m512i nearest_code(__m512 x, __m512 m, __m512 inverse) {
  const __m512 sum = _mm512_fmadd_ps(_mm512_sub_ps(x, m), inverse, _mm512_set1_ps(kRound));
  return _mm512_sub_epi32(_mm512_castps_si512(sum), _mm512_set1_epi32(kRoundBits));
}

// Up or down by chance: with 8 bits and a number next to 1, rounding can go beyond the last one.
template <int kBits>
inline __m512i drawn_code(__m512 x, __m512 m, __m512 inverse, __m512i random) {
  // (2 random + 1) / 2^17, which is exact.
  const __m512 u = _mm512_fmadd_ps(_mm512_cvtepi32_ps(random), _mm512_set1_ps(0x1p-16F),
                                   _mm512_set1_ps(0x1p-17F));
  const __m512i code = _mm512_cvttps_epi32(_mm512_fmadd_ps(_mm512_sub_ps(x, m), inverse, u));
  return _mm512_min_epi32(code, _mm512_set1_epi32((1 << kBits) - 1));
}

template <int kBits, bool kDraw>
inline __m512i code_of(__m512 x, __m512 m, __m512 inverse, __m512i random) {
  if constexpr (kDraw) return drawn_code<kBits>(x, m, inverse, random);
  return nearest_code(x, m, inverse);
}

template <int kBits, bool kDraw>
void seal_by_token(const SealJob& job) {
  const int d = job.head_dim;
  const int partition = job.plane.partition;
  for (int token = 0; token < kBlockTokens; token += kTokens) {
    const float* const rows = job.rows + std::size_t(token) * d;
    std::byte* entries = job.metadata + kEntryBytes * token;
    for (int first = 0; first < d; first += partition, entries += kEntryBytes * kBlockTokens) {
      const int end = d - first < partition ? d : first + partition;
      __m512 least[kTokens];
      __m512 greatest[kTokens];
#pragma GCC unroll 8
      for (int j = 0; j < kTokens; ++j) {
        least[j] = greatest[j] = _mm512_load_ps(rows + std::size_t(j) * d + first);
      }
      for (int channel = first + kLanes; channel < end; channel += kLanes) {
#pragma GCC unroll 8
        for (int j = 0; j < kTokens; ++j) {
          const __m512 x = _mm512_load_ps(rows + std::size_t(j) * d + channel);
          least[j] = _mm512_min_ps(least[j], x);
          greatest[j] = _mm512_max_ps(greatest[j], x);
        }
      }
      const Entries made =
          make_entries<kBits>(job.plane.meta, reduce<Min>(least), reduce<Max>(greatest));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(entries), _mm512_castsi512_si256(made.pairs));
      alignas(64) float m[kLanes];
      alignas(64) float inverse[kLanes];
      _mm512_store_ps(m, made.m);
      _mm512_store_ps(inverse, made.inverse);
      for (int channel = first; channel < end; channel += kLanes) {
        __m512i random[kTokens] = {};
        if constexpr (kDraw) draw_keys(job, token, channel, random);
        __m512i codes[kTokens];
#pragma GCC unroll 8
        for (int j = 0; j < kTokens; ++j) {
          codes[j] =
              code_of<kBits, kDraw>(_mm512_load_ps(rows + std::size_t(j) * d + channel),
                                    _mm512_set1_ps(m[j]), _mm512_set1_ps(inverse[j]), random[j]);
        }
        store_key_codes<kBits>(job, token, channel, codes);
      }
    }
  }
}

template <int kBits, bool kDraw>
void seal_by_channel(const SealJob& job) {
  const int d = job.head_dim;
  const int partition = job.plane.partition;
  for (int channel = 0; channel < d; channel += kLanes) {
    const float* const column = job.rows + channel;
    std::byte* entries = job.metadata + kEntryBytes * channel;
    for (int first = 0; first < kBlockTokens; first += partition, entries += kEntryBytes * d) {
      __m512 least = _mm512_load_ps(column + std::size_t(first) * d);
      __m512 greatest = least;
      for (int token = first + 1; token < first + partition; ++token) {
        const __m512 x = _mm512_load_ps(column + std::size_t(token) * d);
        least = _mm512_min_ps(least, x);
        greatest = _mm512_max_ps(greatest, x);
      }
      const Entries made = make_entries<kBits>(job.plane.meta, least, greatest);
      _mm512_storeu_si512(entries, made.pairs);
      for (int token = first; token < first + partition; token += kTokens) {
        __m512i random[kTokens] = {};
        if constexpr (kDraw) draw_values(job, token, channel, random);
        __m512i codes[kTokens];
#pragma GCC unroll 8
        for (int j = 0; j < kTokens; ++j) {
          codes[j] = code_of<kBits, kDraw>(_mm512_load_ps(column + std::size_t(token + j) * d),
                                           made.m, made.inverse, random[j]);
        }
        store_value_codes<kBits>(job, token, channel, codes);
      }
    }
  }
}

template <int kBits, bool kDraw>
SealKernel kernel_of(Axis axis, Part part) {
  const bool keys = part == Part::kKeys;
  switch (axis) {
    case Axis::kToken: return keys ? seal_by_token<kBits, kDraw> : nullptr;
    case Axis::kChannel: return keys ? nullptr : seal_by_channel<kBits, kDraw>;
    default: return keys ? seal_both<kBits, Part::kKeys> : seal_both<kBits, Part::kValues>;
  }
}

template <bool kDraw>
SealKernel kernel_of(const Plane& plane, Part part) {
  switch (plane.bits) {
    case 2: return kernel_of<2, kDraw>(plane.axis, part);
    case 4: return kernel_of<4, kDraw>(plane.axis, part);
    default: return kernel_of<8, kDraw>(plane.axis, part);
  }
}

}  // namespace

SealKernel seal_kernel_avx512(const Plane& plane, Part part, Rounding rounding) {
  if (!has_kernel(plane)) return nullptr;
  return rounding == Rounding::kStochastic ? kernel_of<true>(plane, part)
                                           : kernel_of<false>(plane, part);
}

}  // namespace kvlane::hack
