// Rows of floats to pages of codes with AVX2: the way of hack_seal_avx512.cpp in halves of its
// vectors.
//
// Tokens go by eights: what K packs into words as 2 times 4 tokens, V as two registers of a class.
// A vector is 8 channels of a token. Sums of a token are 16 partial ones in the scalar code: those
// of the first 8 of every 16 channels are taken first, then those of the others, so that 8 tokens'
// sums are in registers. Products and sums that are rounded each must not be fused, so they are not
// where the scalar code does not say std::fma.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/hack_avx2.h"
#include "quant/hack_draw_avx2.h"
#include "quant/hack_kernels.h"

namespace kvlane::hack {
namespace {

using avx2::kLanes;
using avx2::to_floats;

constexpr int kTokens = 8;  // at a time
constexpr int kSums = 16;   // partial sums of a token
static_assert(kSums == 2 * kLanes);

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

inline __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }

// --- codes to words -----------------------------------------------------------------------------

inline void store_four(std::byte* words, int word, __m128i four) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 4 * word), four);
}

// Codes of channels `channel` ... + 7 of tokens `token` ... + 7, as integers, to words of K. For 2
// bits, the first half of a word comes before the second.
template <int kBits>
inline void store_key_codes(const SealJob& job, int token, int channel,
                            const __m256i (&codes)[kTokens]) {
  const int first = channel * kBits / 32 * kBlockTokens + token;
#pragma GCC unroll 2
  for (int i = 0; i < kTokens; i += 4) {
    // Lane j of a half: four channels of token j, the bytes of a register.
    const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(codes[i], codes[i + 1]),
                                              _mm256_packus_epi32(codes[i + 2], codes[i + 3]));
    const __m128i low = _mm256_castsi256_si128(bytes);
    const __m128i high = _mm256_extracti128_si256(bytes, 1);
    if constexpr (kBits == 8) {
      store_four(job.codes, first + i, low);
      store_four(job.codes, first + i + kBlockTokens, high);
    } else {
      __m128i words = _mm_or_si128(low, _mm_slli_epi32(high, kBits));
      if (kBits == 2 && channel % 16 != 0) {
        const auto* before = reinterpret_cast<const __m128i*>(job.codes + 4 * (first + i));
        words = _mm_or_si128(_mm_loadu_si128(before), _mm_slli_epi32(words, 4));
      }
      store_four(job.codes, first + i, words);
    }
  }
}

inline __m256i bytes_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  return _mm256_or_si256(_mm256_or_si256(a, _mm256_slli_epi32(b, 8)),
                         _mm256_or_si256(_mm256_slli_epi32(c, 16), _mm256_slli_epi32(d, 24)));
}

// The same to words of V. For 2 bits, the first half of the tokens comes before the second.
template <int kBits>
inline void store_value_codes(const SealJob& job, int token, int channel,
                              const __m256i (&codes)[kTokens]) {
  // value_token(): registers 2 half and 2 half + 1 of class c.
  const int half = token / 32;
  const int c = token / 8 % kValueClasses;
  const __m256i even = bytes_of(codes[0], codes[1], codes[4], codes[5]);
  const __m256i odd = bytes_of(codes[2], codes[3], codes[6], codes[7]);
  const auto words = [&](int i) {
    return job.codes + 4 * (std::size_t(kValueClasses * i + c) * job.head_dim + channel);
  };
  if constexpr (kBits == 8) {
    avx2::store(words(2 * half), even);
    avx2::store(words(2 * half + 1), odd);
  } else if constexpr (kBits == 4) {
    avx2::store(words(half), _mm256_or_si256(even, _mm256_slli_epi32(odd, 4)));
  } else {
    __m256i word = _mm256_or_si256(even, _mm256_slli_epi32(odd, 2));
    if (half == 1) word = _mm256_or_si256(avx2::load(words(0)), _mm256_slli_epi32(word, 4));
    avx2::store(words(0), word);
  }
}

template <int kBits, Part kPart>
inline void store_codes(const SealJob& job, int token, int channel,
                        const __m256i (&codes)[kTokens]) {
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

// The lanes of 8 vectors, halves onto halves: 8 numbers.
template <class Op>
inline __m256 reduce(const __m256 (&of)[kTokens]) {
  __m256 four[4];  // of tokens i and i + 4
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    four[i] = Op::of(_mm256_permute2f128_ps(of[i], of[i + 4], 0x20),
                     _mm256_permute2f128_ps(of[i], of[i + 4], 0x31));
  }
  const auto onto = [](__m256 a, __m256 b) {
    return Op::of(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  };
  const __m256 low = onto(four[0], four[1]);
  const __m256 high = onto(four[2], four[3]);
  return Op::of(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
}

// The lower halves of lanes.
inline __m128i halves_of(__m256i lanes) {
  return _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
}

// The nearest number of the type, half to even. Of finite ones.
inline __m128i nearest(Meta meta, __m256 x) {
  if (meta == Meta::kFp16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return halves_of(avx2::to_bf16_lanes(x));
}

inline void store_numbers(std::byte* to, __m128i numbers) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), numbers);
}

// a / b, or 0 where `some` says nothing.
inline __m256 quotient(__m256 a, __m256 b, __m256 some) {
  return _mm256_and_ps(_mm256_div_ps(a, b), some);
}

// --- both axes ----------------------------------------------------------------------------------

// What a group of tokens needs of the page, and room for it.
struct Work {
  alignas(32) float middles[kHeadDimMax];  // of channels
  alignas(32) float errors[kHeadDimMax];   // of channels, summed over tokens
  alignas(32) float values[kHeadDimMax / kLanes][kTokens][kLanes];  // code - middle
};

// As middle_of_channel() of the scalar code.
inline __m256 middles_of_channels(const float* rows, int d) {
  __m256 least = _mm256_load_ps(rows);
  __m256 greatest = least;
  __m256 sum = least;
  for (int token = 1; token < kBlockTokens; ++token) {
    const __m256 x = _mm256_load_ps(rows + std::size_t(token) * d);
    least = _mm256_min_ps(x, least);
    greatest = _mm256_max_ps(x, greatest);
    sum = _mm256_add_ps(sum, x);
  }
  const __m256 mean = _mm256_div_ps(_mm256_sub_ps(_mm256_sub_ps(sum, least), greatest),
                                    _mm256_set1_ps(kBlockTokens - 2));
  __m256 distances = _mm256_setzero_ps();
  __m256 farthest = _mm256_setzero_ps();
  for (int token = 0; token < kBlockTokens; ++token) {
    const __m256 x = _mm256_load_ps(rows + std::size_t(token) * d);
    const __m256 distance = magnitude(_mm256_sub_ps(x, mean));
    distances = _mm256_add_ps(distances, distance);
    farthest = _mm256_max_ps(distance, farthest);
  }
  const __m256 others =
      _mm256_div_ps(_mm256_sub_ps(distances, farthest), _mm256_set1_ps(kBlockTokens - 1));
  const __m256 near = _mm256_mul_ps(others, _mm256_set1_ps(kNear));
  const __m256 ends = _mm256_add_ps(_mm256_max_ps(_mm256_sub_ps(mean, near), least),
                                    _mm256_min_ps(_mm256_add_ps(mean, near), greatest));
  return _mm256_mul_ps(ends, _mm256_set1_ps(0.5F));
}

// y of 8 channels of a token.
inline __m256 rest(const float* rows, std::size_t at, __m256 middle) {
  return _mm256_sub_ps(_mm256_load_ps(rows + at), middle);
}

// Sums of squares of the tokens' rests, and their steps.
template <int kBits>
inline __m256 measure(const float* rows, int d, const float* middles, __m256& step) {
  __m256 sums[2][kTokens];
  __m256 greatest[kTokens];
  for (__m256& x : greatest) x = _mm256_setzero_ps();
  for (int half = 0; half < 2; ++half) {
    __m256 sum[kTokens];
    for (__m256& x : sum) x = _mm256_setzero_ps();
    for (int channel = kLanes * half; channel < d; channel += kSums) {
      const __m256 middle = _mm256_load_ps(middles + channel);
#pragma GCC unroll 8
      for (int j = 0; j < kTokens; ++j) {
        const __m256 y = rest(rows, std::size_t(j) * d + channel, middle);
        sum[j] = _mm256_add_ps(sum[j], _mm256_mul_ps(y, y));
        if constexpr (kBits != 2) greatest[j] = _mm256_max_ps(greatest[j], magnitude(y));
      }
    }
    for (int j = 0; j < kTokens; ++j) sums[half][j] = sum[j];
  }
  for (int j = 0; j < kTokens; ++j) sums[0][j] = _mm256_add_ps(sums[0][j], sums[1][j]);
  const __m256 squares = reduce<Add>(sums[0]);
  if constexpr (kBits == 2) {
    const __m256 mean = _mm256_div_ps(squares, _mm256_set1_ps(static_cast<float>(d)));
    step = _mm256_mul_ps(_mm256_sqrt_ps(mean), _mm256_set1_ps(kStepOf2Bits));
  } else {
    step = _mm256_div_ps(reduce<Max>(greatest), _mm256_set1_ps(kMiddle<kBits>));
  }
  return squares;
}

// The codes of 8 tokens; what they stand for goes to `work`, and the sums of y times that are the
// result.
template <int kBits, Part kPart>
inline __m256 code_tokens(const SealJob& job, int token, const float* inverses, Work& work) {
  const int d = job.head_dim;
  const float* const rows = job.rows + std::size_t(token) * d;
  const __m256 origin = _mm256_set1_ps(kMiddle<kBits>);
  __m256 sums[2][kTokens];
  for (int half = 0; half < 2; ++half) {
    for (__m256& x : sums[half]) x = _mm256_setzero_ps();
    for (int channel = kLanes * half; channel < d; channel += kSums) {
      const __m256 middle = _mm256_load_ps(work.middles + channel);
      __m256i codes[kTokens];
#pragma GCC unroll 8
      for (int j = 0; j < kTokens; ++j) {
        const __m256 y = rest(rows, std::size_t(j) * d + channel, middle);
        __m256 code = _mm256_fmadd_ps(y, _mm256_set1_ps(inverses[j]), origin);
        // More bits have a step that leaves none outside.
        if constexpr (kBits == 2) {
          code = _mm256_max_ps(code, _mm256_setzero_ps());
          code = _mm256_min_ps(code, _mm256_set1_ps(kMost<kBits>));
        }
        codes[j] = _mm256_cvtps_epi32(code);
        const __m256 value = _mm256_sub_ps(_mm256_cvtepi32_ps(codes[j]), origin);
        sums[half][j] = _mm256_add_ps(sums[half][j], _mm256_mul_ps(y, value));
        _mm256_store_ps(work.values[channel / kLanes][j], value);
      }
      store_codes<kBits, kPart>(job, token, channel, codes);
    }
  }
  for (int j = 0; j < kTokens; ++j) sums[0][j] = _mm256_add_ps(sums[0][j], sums[1][j]);
  return reduce<Add>(sums[0]);
}

// In units of their tokens' scales, one over which are the weights.
inline void add_errors(const SealJob& job, int token, const float* scales, const float* weights,
                       Work& work) {
  const int d = job.head_dim;
  for (int channel = 0; channel < d; channel += kLanes) {
    const float* const rows = job.rows + std::size_t(token) * d + channel;
    __m256 sum = _mm256_load_ps(work.errors + channel);
#pragma GCC unroll 8
    for (int j = 0; j < kTokens; ++j) {
      const __m256 value = _mm256_load_ps(work.values[channel / kLanes][j]);
      const __m256 x = _mm256_load_ps(rows + std::size_t(j) * d);
      const __m256 error = _mm256_fnmadd_ps(_mm256_set1_ps(scales[j]), value, x);
      sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(weights[j]), error));
    }
    _mm256_store_ps(work.errors + channel, sum);
  }
}

template <int kBits, Part kPart>
void seal_both(const SealJob& job) {
  const int d = job.head_dim;
  const Meta meta = job.plane.meta;
  const __m256 zero = _mm256_setzero_ps();
  const __m256 one = _mm256_set1_ps(1.0F);
  alignas(32) float numbers[kLanes];
  alignas(32) float weights[kLanes];
  float weight = 0;  // of all tokens so far
  Work work;
  for (int channel = 0; channel < d; channel += kLanes) {
    _mm256_store_ps(work.middles + channel, middles_of_channels(job.rows + channel, d));
    _mm256_store_ps(work.errors + channel, zero);
  }
  for (int token = 0; token < kBlockTokens; token += kTokens) {
    __m256 step;
    const __m256 squares = measure<kBits>(job.rows + std::size_t(token) * d, d, work.middles, step);
    const __m256 some = _mm256_cmp_ps(step, _mm256_set1_ps(kStepMin), _CMP_GE_OQ);
    const __m256 inverse = quotient(one, step, some);
    _mm256_store_ps(numbers, inverse);
    const __m256 products = code_tokens<kBits, kPart>(job, token, numbers, work);
    const __m256 coded = _mm256_cmp_ps(inverse, zero, _CMP_NEQ_OQ);
    const __m128i scale = nearest(meta, quotient(squares, products, coded));
    store_numbers(job.metadata + scales_offset(d) + std::size_t{2} * token, scale);
    const __m256 s = to_floats(meta, scale);
    _mm256_store_ps(numbers, s);
    _mm256_store_ps(weights, quotient(one, s, _mm256_cmp_ps(s, zero, _CMP_GT_OQ)));
    for (int j = 0; j < kTokens; ++j) weight += weights[j];
    add_errors(job, token, numbers, weights, work);
  }
  const __m256 all = _mm256_set1_ps(weight);
  for (int channel = 0; channel < d; channel += kLanes) {
    const __m256 mean = weight > 0 ? _mm256_div_ps(_mm256_load_ps(work.errors + channel), all)
                                   : _mm256_load_ps(work.middles + channel);
    store_numbers(job.metadata + std::size_t{2} * channel, nearest(meta, mean));
  }
}

// --- partitions ---------------------------------------------------------------------------------

// The greatest number of the type that is not above x, and the least scale that is not below
// x >= 0; zeros are +0.
inline __m128i not_above(Meta meta, __m256 x) {
  x = _mm256_add_ps(x, _mm256_setzero_ps());
  if (meta == Meta::kFp16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m256i bits = _mm256_castps_si256(x);
  // Away from zero for negative numbers.
  const __m256i up = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0xffff));
  return halves_of(_mm256_srli_epi32(_mm256_add_epi32(bits, up), 16));
}
inline __m128i scale_not_below(Meta meta, __m256 x) {
  x = _mm256_add_ps(x, _mm256_setzero_ps());
  if (meta == Meta::kFp16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0xffff)), 16);
  // One over the least normal number is finite.
  const __m256i normal = _mm256_max_epi32(up, _mm256_set1_epi32(0x0080));
  return halves_of(_mm256_andnot_si256(_mm256_cmpeq_epi32(bits, _mm256_setzero_si256()), normal));
}

// Entries of 8 partitions, m and s in 32 bits each, and what codes are made with.
struct Entries {
  __m256i pairs;
  __m256 m;
  __m256 inverse;
};

template <int kBits>
inline Entries make_entries(Meta meta, __m256 least, __m256 greatest) {
  const __m128i minimum = not_above(meta, least);
  const __m256 m = to_floats(meta, minimum);
  const __m256 exact = _mm256_div_ps(_mm256_sub_ps(greatest, m), _mm256_set1_ps(kMost<kBits>));
  const __m128i scale = scale_not_below(meta, exact);
  const __m256 s = to_floats(meta, scale);
  const __m256 some = _mm256_cmp_ps(s, _mm256_setzero_ps(), _CMP_NEQ_OQ);
  return {_mm256_or_si256(_mm256_cvtepu16_epi32(minimum),
                          _mm256_slli_epi32(_mm256_cvtepu16_epi32(scale), 16)),
          m, quotient(_mm256_set1_ps(1.0F), s, some)};
}

// s is not below the step that fits, so no code is beyond the last one.
inline __m256i nearest_code(__m256 x, __m256 m, __m256 inverse) {
  const __m256 sum = _mm256_fmadd_ps(_mm256_sub_ps(x, m), inverse, _mm256_set1_ps(kRound));
  return _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_set1_epi32(kRoundBits));
}

// Up or down by chance: with 8 bits and a number next to 1, rounding can go beyond the last one.
template <int kBits>
inline __m256i drawn_code(__m256 x, __m256 m, __m256 inverse, __m256i random) {
  // (2 random + 1) / 2^17, which is exact.
  const __m256 u = _mm256_fmadd_ps(_mm256_cvtepi32_ps(random), _mm256_set1_ps(0x1p-16F),
                                   _mm256_set1_ps(0x1p-17F));
  const __m256i code = _mm256_cvttps_epi32(_mm256_fmadd_ps(_mm256_sub_ps(x, m), inverse, u));
  return _mm256_min_epi32(code, _mm256_set1_epi32((1 << kBits) - 1));
}

template <int kBits, bool kDraw>
inline __m256i code_of(__m256 x, __m256 m, __m256 inverse, __m256i random) {
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
      __m256 least[kTokens];
      __m256 greatest[kTokens];
      // A token at a time: its two results are in registers.
      for (int j = 0; j < kTokens; ++j) {
        const float* const row = rows + std::size_t(j) * d;
        least[j] = greatest[j] = _mm256_load_ps(row + first);
        for (int channel = first + kLanes; channel < end; channel += kLanes) {
          const __m256 x = _mm256_load_ps(row + channel);
          least[j] = _mm256_min_ps(least[j], x);
          greatest[j] = _mm256_max_ps(greatest[j], x);
        }
      }
      const Entries made =
          make_entries<kBits>(job.plane.meta, reduce<Min>(least), reduce<Max>(greatest));
      avx2::store(entries, made.pairs);
      alignas(32) float m[kLanes];
      alignas(32) float inverse[kLanes];
      _mm256_store_ps(m, made.m);
      _mm256_store_ps(inverse, made.inverse);
      for (int channel = first; channel < end; channel += kLanes) {
        __m256i random[kTokens] = {};
        if constexpr (kDraw) avx2::draw_keys(job, token, channel, random);
        __m256i codes[kTokens];
#pragma GCC unroll 8
        for (int j = 0; j < kTokens; ++j) {
          codes[j] =
              code_of<kBits, kDraw>(_mm256_load_ps(rows + std::size_t(j) * d + channel),
                                    _mm256_set1_ps(m[j]), _mm256_set1_ps(inverse[j]), random[j]);
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
      __m256 least = _mm256_load_ps(column + std::size_t(first) * d);
      __m256 greatest = least;
      for (int token = first + 1; token < first + partition; ++token) {
        const __m256 x = _mm256_load_ps(column + std::size_t(token) * d);
        least = _mm256_min_ps(least, x);
        greatest = _mm256_max_ps(greatest, x);
      }
      const Entries made = make_entries<kBits>(job.plane.meta, least, greatest);
      avx2::store(entries, made.pairs);
      for (int token = first; token < first + partition; token += kTokens) {
        __m256i random[kTokens] = {};
        if constexpr (kDraw) avx2::draw_values(job, token, channel, random);
        __m256i codes[kTokens];
#pragma GCC unroll 8
        for (int j = 0; j < kTokens; ++j) {
          codes[j] = code_of<kBits, kDraw>(_mm256_load_ps(column + std::size_t(token + j) * d),
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

SealKernel seal_kernel_avx2(const Plane& plane, Part part, Rounding rounding) {
  if (!avx2::has_kernel(plane)) return nullptr;
  return rounding == Rounding::kStochastic ? kernel_of<true>(plane, part)
                                           : kernel_of<false>(plane, part);
}

}  // namespace kvlane::hack
