// BF16 rows to linear codes with AVX-512.
//
// A vector is 32 channels of a token. Floats are made of its even and of its odd channels, so that
// codes go back to their places by one shift and one blend; codes of 8 tokens are then packed into
// their words. Floating-point codes take one pass, as a block of MX is one vector. Integers take
// two: least and greatest of all groups, on 16-bit integers that are ordered as floats are, then
// their m, s and 1 / s, 16 at a time, then codes. About 20 operations for 32 values; it runs once a
// token.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_avx512.h"

namespace kvlane::linear {
namespace {

constexpr int kTokens = 8;  // at a time: whole words of every width
constexpr __mmask32 kOdd = 0xaaaaaaaa;

inline __m512i load(const SealJob& job, int token, int channel, __mmask32 mask) {
  return _mm512_maskz_loadu_epi16(mask, job.rows + std::size_t(token) * job.head_dim + channel);
}

inline __m512 even_floats(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
inline __m512 odd_floats(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
// The low halves of both.
inline __m512i interleaved(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(kOdd, even, _mm512_slli_epi32(odd, 16));
}

template <int kBits>
inline __m512i word_of(const __m512i* codes) {
  __m512i word = codes[0];
  for (int j = 1; j < 16 / kBits; ++j) {
    word = _mm512_or_si512(word, _mm512_slli_epi16(codes[j], kBits * j));
  }
  return word;
}

// The codes of tokens `token` ... `token` + 7, without bits above kBits, into their words.
template <int kBits>
inline void store(const SealJob& job, int token, int channel, __mmask32 mask,
                  const __m512i (&codes)[kTokens]) {
  auto* const words = reinterpret_cast<std::uint16_t*>(job.codes);
  const int d = job.head_dim;
  if constexpr (kBits == 6) {
    __m512i low[kTokens];
    __m512i high[kTokens];
    for (int j = 0; j < kTokens; ++j) {
      low[j] = _mm512_and_si512(codes[j], _mm512_set1_epi16(15));
      high[j] = _mm512_srli_epi16(codes[j], 4);
    }
    std::uint16_t* const nibbles = words + token / 4 * d + channel;
    _mm512_mask_storeu_epi16(nibbles, mask, word_of<4>(low));
    _mm512_mask_storeu_epi16(nibbles + d, mask, word_of<4>(low + 4));
    _mm512_mask_storeu_epi16(words + (16 + token / 8) * d + channel, mask, word_of<2>(high));
  } else {
    constexpr int kCodes = 16 / kBits;
    for (int j = 0; j < kTokens; j += kCodes) {
      _mm512_mask_storeu_epi16(words + (token + j) / kCodes * d + channel, mask,
                               word_of<kBits>(codes + j));
    }
  }
}

// --- floating-point codes -----------------------------------------------------------------------

inline unsigned least_of(__m128i x) {
  return static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(x), 0));
}

inline unsigned greatest_magnitude(__m512i magnitudes) {
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes),
                                        _mm512_extracti64x4_epi64(magnitudes, 1));
  const __m128i quarter =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  return 0xffffU ^ least_of(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
}

template <CodeKind kCode>
inline int entry_for(unsigned most, bool saturates) {
  constexpr int kEmax = small_float(kCode).emax;
  const int above = !saturates && (most & 0x7fU) > 0x60U ? 1 : 0;
  const int e = static_cast<int>(most >> 7) - kEmax + above;
  return e < 0 ? 0 : e > 254 - kEmax ? 254 - kEmax : e;
}

inline __m512 inverse_scale(int entry) {
  return _mm512_castsi512_ps(_mm512_set1_epi32((254 - entry) << 23));
}

// As float_code() of the scalar code, without the sign.
template <CodeKind kCode>
inline __m512i magnitude_codes(__m512 x, __m512 inverse) {
  constexpr SmallFloat kType = small_float(kCode);
  const __m512i y = _mm512_castps_si512(_mm512_mul_ps(_mm512_abs_ps(x), inverse));
  const __m512i least = _mm512_set1_epi32((127 + 1 - kType.bias) << 23);
  const __m512i exponent =
      _mm512_max_epu32(_mm512_and_si512(y, _mm512_set1_epi32(0x7f800000)), least);
  const __m512i anchor =
      _mm512_add_epi32(exponent, _mm512_set1_epi32((23 - kType.mantissa_bits) << 23));
  const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(y), _mm512_castsi512_ps(anchor));
  const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), anchor);
  const __m512i code = _mm512_add_epi32(
      steps, _mm512_srli_epi32(_mm512_sub_epi32(exponent, least), 23 - kType.mantissa_bits));
  return _mm512_min_epu32(code, _mm512_set1_epi32(static_cast<int>(kType.largest)));
}

template <CodeKind kCode>
inline __m512i float_codes(__m512i x, __m512 inverse) {
  const __m512i magnitudes = interleaved(magnitude_codes<kCode>(even_floats(x), inverse),
                                         magnitude_codes<kCode>(odd_floats(x), inverse));
  const __m512i sign = _mm512_and_si512(x, _mm512_set1_epi16(static_cast<short>(0x8000)));
  return _mm512_or_si512(magnitudes, _mm512_srli_epi16(sign, 16 - code_bits(kCode)));
}

template <CodeKind kCode>
void seal_mx(const SealJob& job) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  for (int token = 0; token < kBlockTokens; token += kTokens) {
    for (int channel = 0; channel < job.head_dim; channel += kLanes) {
      const __mmask32 mask = lanes(job.head_dim - channel);
      std::byte* const entries = job.metadata + channel / kLanes * kBlockTokens + token;
      __m512i codes[kTokens];
      for (int j = 0; j < kTokens; ++j) {
        const __m512i x = load(job, token + j, channel, mask);
        const int entry =
            entry_for<kCode>(greatest_magnitude(_mm512_and_si512(x, magnitude)), true);
        entries[j] = static_cast<std::byte>(entry);
        codes[j] = float_codes<kCode>(x, inverse_scale(entry));
      }
      store<code_bits(kCode)>(job, token, channel, mask, codes);
    }
  }
}

template <CodeKind kCode>
void seal_fp8(const SealJob& job) {
  __m512i most = _mm512_setzero_si512();
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int channel = 0; channel < job.head_dim; channel += kLanes) {
      const __m512i x = load(job, token, channel, lanes(job.head_dim - channel));
      most = _mm512_max_epu16(most, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)));
    }
  }
  const int entry = entry_for<kCode>(greatest_magnitude(most), false);
  *job.metadata = static_cast<std::byte>(entry);
  const __m512 inverse = inverse_scale(entry);
  for (int token = 0; token < kBlockTokens; token += kTokens) {
    for (int channel = 0; channel < job.head_dim; channel += kLanes) {
      const __mmask32 mask = lanes(job.head_dim - channel);
      __m512i codes[kTokens];
      for (int j = 0; j < kTokens; ++j) {
        codes[j] = float_codes<kCode>(load(job, token + j, channel, mask), inverse);
      }
      store<code_bits(kCode)>(job, token, channel, mask, codes);
    }
  }
}

// --- integers -----------------------------------------------------------------------------------

// Of all groups. Room for a strip beyond the last: it is loaded, and not used.
struct Ranges {
  alignas(64) std::uint16_t least[kEntriesMax + kLanes];  // BF16
  alignas(64) std::uint16_t greatest[kEntriesMax + kLanes];
  alignas(64) float m[kEntriesMax + kLanes];
  alignas(64) float inverse[kEntriesMax + kLanes];  // 1 / s, or 0
};

// BF16 bits as signed integers in the order of the numbers, and back.
inline __m512i ordered(__m512i x) {
  return _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi16(x, 15), _mm512_set1_epi16(0x7fff)));
}
inline std::uint16_t from_ordered(unsigned key) {
  return static_cast<std::uint16_t>((key & 0x8000U) != 0 ? key ^ 0x7fffU : key);
}

// What least and greatest of nothing are.
inline __m512i above_all() { return _mm512_set1_epi16(0x7fff); }
inline __m512i below_all() { return _mm512_set1_epi16(static_cast<short>(0x8000)); }

inline unsigned least_ordered(__m512i keys) {
  const __m256i half =
      _mm256_min_epi16(_mm512_castsi512_si256(keys), _mm512_extracti64x4_epi64(keys, 1));
  const __m128i quarter =
      _mm_min_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  return 0x8000U ^ least_of(_mm_xor_si128(quarter, _mm_set1_epi16(static_cast<short>(0x8000))));
}
inline unsigned greatest_ordered(__m512i keys) {
  return 0xffffU ^ least_ordered(_mm512_xor_si512(keys, _mm512_set1_epi16(-1)));
}

void find_row_ranges(const SealJob& job, Ranges& ranges) {
  const int d = job.head_dim;
  int entry = 0;
  for (int first = 0; first < d; first += job.plane.group) {
    const int end = d - first < job.plane.group ? d : first + job.plane.group;
    for (int token = 0; token < kBlockTokens; ++token, ++entry) {
      __m512i least = above_all();
      __m512i greatest = below_all();
      for (int channel = first; channel < end; channel += kLanes) {
        const __mmask32 mask = lanes(end - channel);
        const __m512i keys = ordered(load(job, token, channel, mask));
        least = _mm512_mask_min_epi16(least, mask, least, keys);
        greatest = _mm512_mask_max_epi16(greatest, mask, greatest, keys);
      }
      ranges.least[entry] = from_ordered(least_ordered(least));
      ranges.greatest[entry] = from_ordered(greatest_ordered(greatest));
    }
  }
}

void find_column_ranges(const SealJob& job, Ranges& ranges) {
  for (int channel = 0; channel < job.head_dim; channel += kLanes) {
    const __mmask32 mask = lanes(job.head_dim - channel);
    for (int first = 0; first < kBlockTokens; first += job.plane.group) {
      __m512i least = above_all();
      __m512i greatest = below_all();
      for (int token = first; token < first + job.plane.group; ++token) {
        const __m512i keys = ordered(load(job, token, channel, mask));
        least = _mm512_min_epi16(least, keys);
        greatest = _mm512_max_epi16(greatest, keys);
      }
      const int entry = first / job.plane.group * job.head_dim + channel;
      _mm512_mask_storeu_epi16(ranges.least + entry, mask, ordered(least));
      _mm512_mask_storeu_epi16(ranges.greatest + entry, mask, ordered(greatest));
    }
  }
}

inline __m512 bf16_floats(const std::uint16_t* from) {
  const __m512i bits =
      _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

// Writes the metadata; m and 1 / s to `ranges`.
template <int kBits, bool kHasMin>
void make_entries(const SealJob& job, int count, Ranges& ranges) {
  constexpr float kSteps = kHasMin ? (1 << kBits) - 1 : (1 << (kBits - 1)) - 1;
  const __m512 zero = _mm512_setzero_ps();
  for (int i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1U << (count - i)) - 1U);
    const __m512 least = bf16_floats(ranges.least + i);
    const __m512 greatest = bf16_floats(ranges.greatest + i);
    __m512 m = zero;
    __m512 range = _mm512_max_ps(_mm512_abs_ps(least), _mm512_abs_ps(greatest));
    __m256i m_half = _mm256_setzero_si256();
    if constexpr (kHasMin) {
      // Adding zero makes -0 a +0.
      m_half =
          _mm512_cvtps_ph(_mm512_add_ps(least, zero), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      m = _mm512_cvtph_ps(m_half);
      range = _mm512_add_ps(_mm512_sub_ps(greatest, m), zero);
    }
    const __m256i s_half = _mm512_cvtps_ph(_mm512_div_ps(range, _mm512_set1_ps(kSteps)),
                                           _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m512 s = _mm512_cvtph_ps(s_half);
    const __mmask16 some = _mm512_cmp_ps_mask(s, zero, _CMP_NEQ_UQ);
    _mm512_store_ps(ranges.m + i, m);
    _mm512_store_ps(ranges.inverse + i, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0F), s));
    if constexpr (kHasMin) {
      const __m512i pairs = _mm512_or_si512(_mm512_cvtepu16_epi32(m_half),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(s_half), 16));
      _mm512_mask_storeu_epi32(job.metadata + 4 * i, mask, pairs);
    } else {
      _mm256_mask_storeu_epi16(job.metadata + 2 * i, mask, s_half);
    }
  }
}

// m and 1 / s of 32 channels, of even and odd ones.
struct Quantiser {
  __m512 m_even, m_odd, inverse_even, inverse_odd;
};

// The codes as unsigned numbers, in 16 bits.
template <int kOffset>
inline __m512i integer_codes(__m512i x, const Quantiser& q) {
  const __m512 round = _mm512_set1_ps(0x1.8p23F);
  const __m512i even = _mm512_castps_si512(
      _mm512_fmadd_ps(_mm512_sub_ps(even_floats(x), q.m_even), q.inverse_even, round));
  const __m512i odd = _mm512_castps_si512(
      _mm512_fmadd_ps(_mm512_sub_ps(odd_floats(x), q.m_odd), q.inverse_odd, round));
  // The low halves of round's bits are zero.
  return _mm512_add_epi16(interleaved(even, odd), _mm512_set1_epi16(kOffset));
}

template <int kBits, bool kHasMin>
void seal_rows(const SealJob& job) {
  constexpr int kOffset = kHasMin ? 0 : 1 << (kBits - 1);
  const int d = job.head_dim;
  const int groups = (d + job.plane.group - 1) / job.plane.group;
  if (groups * kBlockTokens > kEntriesMax) return seal_scalar(job);
  Ranges ranges;
  find_row_ranges(job, ranges);
  make_entries<kBits, kHasMin>(job, groups * kBlockTokens, ranges);
  for (int token = 0; token < kBlockTokens; token += kTokens) {
    int entry = token;
    for (int first = 0; first < d; first += job.plane.group, entry += kBlockTokens) {
      const int end = d - first < job.plane.group ? d : first + job.plane.group;
      for (int channel = first; channel < end; channel += kLanes) {
        const __mmask32 mask = lanes(end - channel);
        __m512i codes[kTokens];
        for (int j = 0; j < kTokens; ++j) {
          const __m512 m = _mm512_set1_ps(ranges.m[entry + j]);
          const __m512 inverse = _mm512_set1_ps(ranges.inverse[entry + j]);
          codes[j] =
              integer_codes<kOffset>(load(job, token + j, channel, mask), {m, m, inverse, inverse});
        }
        store<kBits>(job, token, channel, mask, codes);
      }
    }
  }
}

inline void split(const float* from, __m512& even, __m512& odd) {
  const __m512i places =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 low = _mm512_loadu_ps(from);
  const __m512 high = _mm512_loadu_ps(from + 16);
  even = _mm512_permutex2var_ps(low, places, high);
  odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(places, _mm512_set1_epi32(1)), high);
}

template <int kBits>
void seal_columns(const SealJob& job) {
  const int d = job.head_dim;
  const int count = kBlockTokens / job.plane.group * d;
  if (count > kEntriesMax) return seal_scalar(job);
  Ranges ranges;
  find_column_ranges(job, ranges);
  make_entries<kBits, true>(job, count, ranges);
  for (int channel = 0; channel < d; channel += kLanes) {
    const __mmask32 mask = lanes(d - channel);
    for (int first = 0; first < kBlockTokens; first += job.plane.group) {
      const int entry = first / job.plane.group * d + channel;
      Quantiser q;
      split(ranges.m + entry, q.m_even, q.m_odd);
      split(ranges.inverse + entry, q.inverse_even, q.inverse_odd);
      for (int token = first; token < first + job.plane.group; token += kTokens) {
        __m512i codes[kTokens];
        for (int j = 0; j < kTokens; ++j) {
          codes[j] = integer_codes<0>(load(job, token + j, channel, mask), q);
        }
        store<kBits>(job, token, channel, mask, codes);
      }
    }
  }
}

SealKernel float_kernel(CodeKind code, bool page) {
  switch (code) {
    case CodeKind::kE4m3: return page ? seal_fp8<CodeKind::kE4m3> : seal_mx<CodeKind::kE4m3>;
    case CodeKind::kE5m2: return page ? seal_fp8<CodeKind::kE5m2> : seal_mx<CodeKind::kE5m2>;
    case CodeKind::kE2m3: return page ? nullptr : seal_mx<CodeKind::kE2m3>;
    case CodeKind::kE3m2: return page ? nullptr : seal_mx<CodeKind::kE3m2>;
    default: return page ? nullptr : seal_mx<CodeKind::kE2m1>;
  }
}

SealKernel row_kernel(CodeKind code) {
  switch (code) {
    case CodeKind::kUint2: return seal_rows<2, true>;
    case CodeKind::kUint4: return seal_rows<4, true>;
    case CodeKind::kUint8: return seal_rows<8, true>;
    case CodeKind::kSint4: return seal_rows<4, false>;
    default: return seal_rows<8, false>;
  }
}

}  // namespace

SealKernel seal_kernel_avx512(const Plane& plane) {
  if (plane.code >= CodeKind::kE4m3) {
    const bool page = plane.groups == Groups::kPage;
    const bool mx = plane.groups == Groups::kRow && plane.group == kLanes && plane.saturates;
    return (page && !plane.saturates) || mx ? float_kernel(plane.code, page) : nullptr;
  }
  if (plane.groups == Groups::kRow) return row_kernel(plane.code);
  if (plane.groups != Groups::kColumn || plane.group % kTokens != 0) return nullptr;
  if (plane.code == CodeKind::kUint2) return seal_columns<2>;
  return plane.code == CodeKind::kUint4 ? seal_columns<4> : nullptr;
}

}  // namespace kvlane::linear
