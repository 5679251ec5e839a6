// Small floating-point codes to BF16 rows with AVX-512. A scale is a power of two, so it only adds
// to the exponents of BF16 values, which tables or shifts make of the codes; groups whose values
// would leave BF16's normal range are left to the scalar code. What it costs:
// linear_open_avx512_bf16.cpp.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_avx512.h"
#include "quant/linear_floats.h"

namespace kvlane::linear {
namespace {

struct alignas(64) Words32 {
  std::uint16_t words[32];
  __m512i vector() const { return _mm512_load_si512(words); }
};

// Entry i is the value of code i, modulo the codes there are; kSigned: with the sign above the
// magnitude's bits.
template <CodeKind kCode, bool kSigned>
constexpr Words32 value_table() {
  constexpr unsigned kMagnitudes = 1U << (code_bits(kCode) - 1);
  Words32 table{};
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned sign = kSigned && (i & kMagnitudes) != 0 ? 0x8000U : 0U;
    table.words[i] = static_cast<std::uint16_t>(bf16_magnitude(kCode, i % kMagnitudes) | sign);
  }
  return table;
}

// What the scales of rows of 32 channels add to BF16 bits, twice in each entry.
struct Shifts {
  alignas(64) std::uint32_t of[kEntriesMax];
};

// `extra` is added to all of them.
inline void read_shifts(const OpenJob& job, int count, int extra, Shifts& shifts) {
  for (int i = 0; i < count; i += 16) {
    const __m512i e =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(job.metadata + i)));
    const __m512i shift =
        _mm512_add_epi32(_mm512_slli_epi32(e, 7), _mm512_set1_epi32(extra - (127 << 7)));
    _mm512_store_si512(shifts.of + i,
                       _mm512_or_si512(_mm512_slli_epi32(shift, 16),
                                       _mm512_and_si512(shift, _mm512_set1_epi32(0xffff))));
  }
}

// Opens again what vectors got wrong: groups whose scale takes values out of BF16's normal range.
// Those are blocks of zeros, mostly.
inline void mend(const OpenJob& job, int count, int least, int greatest) {
  const __m512i base = _mm512_set1_epi8(static_cast<char>(least));
  const __m512i span = _mm512_set1_epi8(static_cast<char>(greatest - least));
  for (int i = 0; i < count; i += 64) {
    const __m512i above = _mm512_sub_epi8(_mm512_loadu_si512(job.metadata + i), base);
    __mmask64 wrong = _mm512_cmpgt_epu8_mask(above, span);
    for (; wrong != 0; wrong &= wrong - 1) {
      open_group_scalar(job, i + static_cast<int>(__builtin_ctzll(wrong)));
    }
  }
}

inline __m512i shifted(__m512i table, __mmask32 nonzero, std::uint32_t shift) {
  return _mm512_mask_add_epi16(table, nonzero, table, _mm512_set1_epi32(static_cast<int>(shift)));
}

inline __m512i with_sign(__m512i sign, __m512i magnitude) {
  return _mm512_ternarylogic_epi64(sign, _mm512_set1_epi16(static_cast<short>(0x8000)), magnitude,
                                   0xea);  // (sign & 0x8000) | magnitude
}

void open_mxfp4(const OpenJob& job) {
  static constexpr Words32 kTable = value_table<CodeKind::kE2m1, true>();
  const int d = job.head_dim;
  const int count = (d + 31) / 32 * kBlockTokens;
  Shifts shifts;
  read_shifts(job, count, 0, shifts);
  const __m512i table = kTable.vector();
  const __mmask32 nonzero = _mm512_test_epi16_mask(table, _mm512_set1_epi16(0x7fff));
  const std::uint32_t* shift = shifts.of;
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d);
    for (int i = 0; i < kBlockTokens / 4; ++i, shift += 4) {
      const __m512i word = strip.word(i);
      for (int j = 0; j < 4; ++j) {
        strip.store(4 * i + j, _mm512_permutexvar_epi16(_mm512_srli_epi16(word, 4 * j),
                                                        shifted(table, nonzero, shift[j])));
      }
    }
  }
  mend(job, count, least_entry(CodeKind::kE2m1), greatest_entry(CodeKind::kE2m1));
}

// Shifts left by a constant of either sign.
template <int kBits>
inline __m512i moved(__m512i x) {
  if constexpr (kBits >= 0) return _mm512_slli_epi16(x, kBits);
  return _mm512_srli_epi16(x, -kBits);
}

// Tokens kJ ... 7 of the 8 of a word row of pairs: 5 bits of magnitude and the sign.
template <int kJ>
inline void open_six(const Strip& strip, int token, const __m512i (&nibbles)[2], __m512i pairs,
                     __m512i table, __mmask32 nonzero, const std::uint32_t* shift) {
  const __m512i index = _mm512_ternarylogic_epi64(
      _mm512_set1_epi16(15), _mm512_srli_epi16(nibbles[kJ / 4], 4 * (kJ % 4)),
      moved<4 - 2 * kJ>(pairs), 0xca);  // bits 0-3, bit 4
  const __m512i magnitude = _mm512_permutexvar_epi16(index, shifted(table, nonzero, shift[kJ]));
  strip.store(token + kJ, with_sign(_mm512_slli_epi16(pairs, 14 - 2 * kJ), magnitude));
  if constexpr (kJ < 7) open_six<kJ + 1>(strip, token, nibbles, pairs, table, nonzero, shift);
}

template <CodeKind kCode>
void open_mxfp6(const OpenJob& job) {
  static constexpr Words32 kTable = value_table<kCode, false>();
  const int d = job.head_dim;
  const int count = (d + 31) / 32 * kBlockTokens;
  Shifts shifts;
  read_shifts(job, count, 0, shifts);
  const __m512i table = kTable.vector();
  const __mmask32 nonzero = _mm512_test_epi16_mask(table, table);
  const std::uint32_t* shift = shifts.of;
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d);
    for (int i = 0; i < kBlockTokens / 8; ++i, shift += 8) {
      const __m512i nibbles[2] = {strip.word(2 * i), strip.word(2 * i + 1)};
      open_six<0>(strip, 8 * i, nibbles, strip.word(16 + i), table, nonzero, shift);
    }
  }
  mend(job, count, least_entry(kCode), greatest_entry(kCode));
}

// Values of subnormal codes, short of bias_ahead(), which comes with the scale.
template <CodeKind kCode>
constexpr Words32 subnormal_table() {
  Words32 table{};
  for (unsigned i = 1; i < (1U << small_float(kCode).mantissa_bits); ++i) {
    table.words[i] = static_cast<std::uint16_t>(bf16_magnitude(kCode, i) - bias_ahead<kCode>());
  }
  return table;
}
template <CodeKind kCode>
constexpr __mmask32 subnormal_lanes() {
  return ((1U << (1U << small_float(kCode).mantissa_bits)) - 1U) & ~1U;
}

// The two codes of words, in their low and their high byte. Exponent and mantissa go to BF16's
// places, and `bias` moves the exponent.
template <CodeKind kCode>
struct Eight {
  static constexpr int kPlaces = 7 - small_float(kCode).mantissa_bits;
  static constexpr int kExponentField = ((1 << exponent_bits(kCode)) - 1)
                                        << small_float(kCode).mantissa_bits;

  // Bytes whose exponent's field is 0.
  static __mmask64 subnormal(__mmask64 bytes, __m512i word) {
    return _mm512_mask_testn_epi8_mask(bytes, word, _mm512_set1_epi8(kExponentField));
  }

  static __m512i low_magnitude(__m512i word, __m512i bias) {
    return _mm512_add_epi16(_mm512_and_si512(_mm512_slli_epi16(word, kPlaces), field()), bias);
  }
  static __m512i high_magnitude(__m512i word, __m512i bias) {
    return _mm512_add_epi16(_mm512_and_si512(_mm512_srli_epi16(word, 8 - kPlaces), field()), bias);
  }

  static void open(const Strip& strip, int token, __m512i word, __m512i low, __m512i high) {
    strip.store(token, with_sign(_mm512_slli_epi16(word, 8), low));
    strip.store(token + 1, with_sign(word, high));
  }
  static void open_normal(const Strip& strip, int token, __m512i word, __m512i low_bias,
                          __m512i high_bias) {
    open(strip, token, word, low_magnitude(word, low_bias), high_magnitude(word, high_bias));
  }
  // With the values of subnormal codes from a table, by their mantissa.
  static void open_all(const Strip& strip, int token, __m512i word, __m512i low_bias,
                       __m512i high_bias, __m512i table) {
    const auto lanes_of = [&](int byte) {
      return _mm512_testn_epi16_mask(
          word, _mm512_set1_epi16(static_cast<short>(kExponentField << (8 * byte))));
    };
    const auto subnormals = [&](__m512i bias) {
      return _mm512_mask_add_epi16(table, subnormal_lanes<kCode>(), table, bias);
    };
    const __m512i low = _mm512_mask_permutexvar_epi16(low_magnitude(word, low_bias), lanes_of(0),
                                                      word, subnormals(low_bias));
    const __m512i high =
        _mm512_mask_permutexvar_epi16(high_magnitude(word, high_bias), lanes_of(1),
                                      _mm512_srli_epi16(word, 8), subnormals(high_bias));
    open(strip, token, word, low, high);
  }

 private:
  static __m512i field() { return _mm512_set1_epi16(0x7f << kPlaces); }
};

// `step` is 0 where all tokens have one bias.
template <CodeKind kCode>
inline void open_strip8(const Strip& strip, const std::uint32_t* bias, int step, __m512i table) {
  const __mmask64 bytes = _mm512_movepi8_mask(_mm512_movm_epi16(strip.mask));
  for (int token = 0; token < kBlockTokens; token += 2, bias += 2 * step) {
    const __m512i word = strip.word(token / 2);
    const __m512i low = _mm512_set1_epi32(static_cast<int>(bias[0]));
    const __m512i high = _mm512_set1_epi32(static_cast<int>(bias[step]));
    if (Eight<kCode>::subnormal(bytes, word) == 0) [[likely]] {
      Eight<kCode>::open_normal(strip, token, word, low, high);
    } else {
      Eight<kCode>::open_all(strip, token, word, low, high, table);
    }
  }
}

template <CodeKind kCode>
void open_mxfp8(const OpenJob& job) {
  static constexpr Words32 kTable = subnormal_table<kCode>();
  const int d = job.head_dim;
  const int count = (d + 31) / 32 * kBlockTokens;
  Shifts shifts;
  read_shifts(job, count, bias_ahead<kCode>(), shifts);
  for (int channel = 0; channel < d; channel += kLanes) {
    open_strip8<kCode>(strip_of(job, channel, d), shifts.of + channel / kLanes * kBlockTokens, 1,
                       kTable.vector());
  }
  mend(job, count, least_entry(kCode), greatest_entry(kCode));
}

template <CodeKind kCode>
void open_fp8(const OpenJob& job) {
  static constexpr Words32 kTable = subnormal_table<kCode>();
  const int d = job.head_dim;
  const int entry = static_cast<int>(*job.metadata);
  if (entry < least_entry(kCode) || entry > greatest_entry(kCode)) return open_scalar(job);
  const int shift = ((entry - 127) * 128 + bias_ahead<kCode>()) & 0xffff;
  const std::uint32_t bias = static_cast<std::uint32_t>(shift) * 0x10001U;
  for (int channel = 0; channel < d; channel += kLanes) {
    open_strip8<kCode>(strip_of(job, channel, d), &bias, 0, kTable.vector());
  }
}

OpenKernel float_kernel(CodeKind code, bool page) {
  switch (code) {
    case CodeKind::kE4m3: return page ? open_fp8<CodeKind::kE4m3> : open_mxfp8<CodeKind::kE4m3>;
    case CodeKind::kE5m2: return page ? open_fp8<CodeKind::kE5m2> : open_mxfp8<CodeKind::kE5m2>;
    case CodeKind::kE2m3: return page ? nullptr : open_mxfp6<CodeKind::kE2m3>;
    case CodeKind::kE3m2: return page ? nullptr : open_mxfp6<CodeKind::kE3m2>;
    default: return page ? nullptr : open_mxfp4;
  }
}

}  // namespace

OpenKernel open_floats_avx512(const Plane& plane) {
  const bool page = plane.groups == Groups::kPage;
  const bool known = page || (plane.groups == Groups::kRow && plane.group == kLanes);
  return known ? float_kernel(plane.code, page) : nullptr;
}

}  // namespace kvlane::linear
