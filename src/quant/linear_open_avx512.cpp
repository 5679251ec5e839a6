// Linear codes to BF16 rows with AVX-512: what runs for every page at every decode step.
//
// A vector is 32 channels of one word row: 2, 4 or 8 tokens of them, so a load serves so many
// stores, and nothing but the lookups crosses lanes. What remains for 32 values, besides a store:
//
//   2 or 4 bits in rows    shift, vpermw in a table of the group's 4 or 16 values     2 + table / G
//   mxfp4                  the same; the block's scale goes into the table            4
//   mxfp6                  the same with 5 bits, and the sign                         7
//   fp8, mxfp8             the bits moved; subnormals from a table                    7 to 9
//   8 bits in rows         two halves: widen, convert, multiply-add, narrow           8
//   2 bits in columns      two masks choose one of four vectors of the group          5
//   4 bits in columns      as 8 bits in rows                                          8
//
// At head_dim 128 a page has 512 such vectors. Stores alone are 512 cycles, as many as the BF16
// kernel then needs for loading; reading codes is 6 to 16 KB, which one core gets from memory in
// some 1500 to 4000 cycles. So all but the formats of 8 bits are bound by these instructions, of
// which one or two a cycle retire, and those by memory.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_kernels.h"

namespace kvlane::linear {
namespace {

constexpr int kLanes = 32;
constexpr int kEntriesMax = 512;

struct alignas(64) Words32 {
  std::uint16_t words[32];
  __m512i vector() const { return _mm512_load_si512(words); }
};

// The first `count` lanes, all where there are more.
inline __mmask32 lanes(int count) { return count >= kLanes ? ~0U : (1U << count) - 1U; }
inline __mmask16 lanes16(int count) {
  return count >= 16 ? __mmask16{0xffff} : count <= 0 ? __mmask16{0} : __mmask16((1U << count) - 1);
}

inline const std::uint16_t* words_of(const OpenJob& job) {
  return reinterpret_cast<const std::uint16_t*>(job.codes);
}

inline void store(const OpenJob& job, int token, int channel, __mmask32 mask, __m512i values) {
  _mm512_mask_storeu_epi16(job.rows + std::size_t(token) * job.head_dim + channel, mask, values);
}

// --- integers: x = m + s * c with fp16 m and s --------------------------------------------------

// Of all groups of a plane; c is the code as an unsigned number.
struct Affine {
  alignas(64) float s[kEntriesMax];
  alignas(64) float m[kEntriesMax];
};

// False when an entry is not finite, or there are too many: work for the scalar code.
inline bool read_affine(const OpenJob& job, int count, Affine& affine) {
  if (count > kEntriesMax) return false;
  const bool has_min = job.plane.entry == Entry::kMinScale;
  const float offset = job.plane.code == CodeKind::kSint8   ? 128
                       : job.plane.code == CodeKind::kSint4 ? 8
                                                            : 0;
  const __m256i exponent = _mm256_set1_epi16(0x7c00);
  __mmask16 bad = 0;
  for (int i = 0; i < count; i += 16) {
    const __mmask16 mask = lanes16(count - i);
    if (has_min) {
      const __m512i pairs = _mm512_maskz_loadu_epi32(mask, job.metadata + 4 * i);
      const __m256i m = _mm512_cvtepi32_epi16(pairs);
      const __m256i s = _mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16));
      bad |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(m, exponent), exponent);
      bad |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(s, exponent), exponent);
      _mm512_store_ps(affine.m + i, _mm512_cvtph_ps(m));
      _mm512_store_ps(affine.s + i, _mm512_cvtph_ps(s));
    } else {
      const __m256i halves = _mm256_maskz_loadu_epi16(mask, job.metadata + 2 * i);
      bad |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(halves, exponent), exponent);
      const __m512 s = _mm512_cvtph_ps(halves);
      _mm512_store_ps(affine.s + i, s);
      // Exact, and so is s * c + m then: s * (c - offset) has few bits.
      _mm512_store_ps(affine.m + i, _mm512_mul_ps(s, _mm512_set1_ps(-offset)));
    }
  }
  return bad == 0;
}

inline int row_group_count(const OpenJob& job) {
  return (job.head_dim + job.plane.group - 1) / job.plane.group;
}

// Two vectors of floats to 32 BF16 values. No value here is subnormal: all are multiples of 2^-24.
inline __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Codes of 2 or 4 bits in rows. A table has 32 entries: bits of the next code above do not matter.
template <int kBits>
void open_rows(const OpenJob& job) {
  constexpr int kCodes = 16 / kBits;
  const int d = job.head_dim;
  Affine affine;
  if (!read_affine(job, row_group_count(job) * kBlockTokens, affine)) return open_scalar(job);
  const __m512 numbers = _mm512_cvtepi32_ps(
      _mm512_and_si512(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                       _mm512_set1_epi32((1 << kBits) - 1)));
  for (int i = 0; i < kBlockTokens / kCodes; ++i) {
    const float* s = affine.s + i * kCodes;
    const float* m = affine.m + i * kCodes;
    for (int first = 0; first < d; first += job.plane.group) {
      __m512i tables[kCodes];
      for (int j = 0; j < kCodes; ++j) {
        const __m512 values = _mm512_fmadd_ps(_mm512_set1_ps(s[j]), numbers, _mm512_set1_ps(m[j]));
        tables[j] = _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(values));
      }
      const int end = d - first < job.plane.group ? d : first + job.plane.group;
      for (int channel = first; channel < end; channel += kLanes) {
        const __mmask32 mask = lanes(end - channel);
        const __m512i word = _mm512_maskz_loadu_epi16(mask, words_of(job) + i * d + channel);
        for (int j = 0; j < kCodes; ++j) {
          store(job, kCodes * i + j, channel, mask,
                _mm512_permutexvar_epi16(_mm512_srli_epi16(word, kBits * j), tables[j]));
        }
      }
      s += kBlockTokens;
      m += kBlockTokens;
    }
  }
}

// The words of 32 channels as two vectors of 32-bit lanes.
struct Halves {
  __m512i low, high;
};

inline Halves widen(const std::uint16_t* words, __mmask32 mask) {
  return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), words)),
          _mm512_cvtepu16_epi32(
              _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask >> 16), words + 16))};
}

inline __m512 affine_value(__m512i code, __m512 s, __m512 m) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), s, m);
}

// Codes of 8 bits in rows.
void open_rows8(const OpenJob& job) {
  const int d = job.head_dim;
  Affine affine;
  if (!read_affine(job, row_group_count(job) * kBlockTokens, affine)) return open_scalar(job);
  const __m512i byte = _mm512_set1_epi32(0xff);
  for (int i = 0; i < kBlockTokens / 2; ++i) {
    const float* s = affine.s + 2 * i;
    const float* m = affine.m + 2 * i;
    for (int first = 0; first < d; first += job.plane.group) {
      const __m512 s0 = _mm512_set1_ps(s[0]);
      const __m512 m0 = _mm512_set1_ps(m[0]);
      const __m512 s1 = _mm512_set1_ps(s[1]);
      const __m512 m1 = _mm512_set1_ps(m[1]);
      const int end = d - first < job.plane.group ? d : first + job.plane.group;
      for (int channel = first; channel < end; channel += kLanes) {
        const __mmask32 mask = lanes(end - channel);
        const Halves word = widen(words_of(job) + i * d + channel, mask);
        store(job, 2 * i, channel, mask,
              to_bf16(affine_value(_mm512_and_si512(word.low, byte), s0, m0),
                      affine_value(_mm512_and_si512(word.high, byte), s0, m0)));
        store(job, 2 * i + 1, channel, mask,
              to_bf16(affine_value(_mm512_srli_epi32(word.low, 8), s1, m1),
                      affine_value(_mm512_srli_epi32(word.high, 8), s1, m1)));
      }
      s += kBlockTokens;
      m += kBlockTokens;
    }
  }
}

// Scales and minima of 32 channels, the groups of one run of tokens.
struct ColumnAffine {
  __m512 s_low, s_high, m_low, m_high;
};

inline ColumnAffine columns(const Affine& affine, int entry) {
  return {_mm512_loadu_ps(affine.s + entry), _mm512_loadu_ps(affine.s + entry + 16),
          _mm512_loadu_ps(affine.m + entry), _mm512_loadu_ps(affine.m + entry + 16)};
}

// Codes of 2 bits in columns: each channel has four values while its group lasts.
void open_columns2(const OpenJob& job) {
  const int d = job.head_dim;
  // The last strip of entries may be read beyond what there is: room for that.
  struct {
    Affine affine;
    float beyond[kLanes];
  } room;
  Affine& affine = room.affine;
  if (!read_affine(job, kBlockTokens / job.plane.group * d, affine)) return open_scalar(job);
  for (int channel = 0; channel < d; channel += kLanes) {
    const __mmask32 mask = lanes(d - channel);
    for (int token = 0; token < kBlockTokens; token += job.plane.group) {
      const ColumnAffine a = columns(affine, token / job.plane.group * d + channel);
      __m512i values[4];
      for (int c = 0; c < 4; ++c) {
        const __m512 code = _mm512_set1_ps(static_cast<float>(c));
        values[c] = to_bf16(_mm512_fmadd_ps(a.s_low, code, a.m_low),
                            _mm512_fmadd_ps(a.s_high, code, a.m_high));
      }
      for (int first = token; first < token + job.plane.group; first += 8) {
        const __m512i word =
            _mm512_maskz_loadu_epi16(mask, words_of(job) + first / 8 * d + channel);
        for (int j = 0; j < 8; ++j) {
          const __mmask32 one =
              _mm512_test_epi16_mask(word, _mm512_set1_epi16(static_cast<short>(1 << (2 * j))));
          const __mmask32 two =
              _mm512_test_epi16_mask(word, _mm512_set1_epi16(static_cast<short>(2 << (2 * j))));
          const __m512i below = _mm512_mask_blend_epi16(one, values[0], values[1]);
          const __m512i above = _mm512_mask_blend_epi16(one, values[2], values[3]);
          store(job, first + j, channel, mask, _mm512_mask_blend_epi16(two, below, above));
        }
      }
    }
  }
}

// Codes of 4 bits in columns. They stay where they are in their words: c * 2^(4j) times s * 2^(-4j)
// is the same product.
void open_columns4(const OpenJob& job) {
  const int d = job.head_dim;
  struct {
    Affine affine;
    float beyond[kLanes];
  } room;
  Affine& affine = room.affine;
  if (!read_affine(job, kBlockTokens / job.plane.group * d, affine)) return open_scalar(job);
  for (int channel = 0; channel < d; channel += kLanes) {
    const __mmask32 mask = lanes(d - channel);
    for (int token = 0; token < kBlockTokens; token += job.plane.group) {
      const ColumnAffine a = columns(affine, token / job.plane.group * d + channel);
      __m512 s_low[4];
      __m512 s_high[4];
      for (int j = 0; j < 4; ++j) {
        const __m512 part = _mm512_set1_ps(1.0F / static_cast<float>(1 << (4 * j)));
        s_low[j] = _mm512_mul_ps(a.s_low, part);
        s_high[j] = _mm512_mul_ps(a.s_high, part);
      }
      for (int first = token; first < token + job.plane.group; first += 4) {
        const Halves word = widen(words_of(job) + first / 4 * d + channel, mask);
        for (int j = 0; j < 4; ++j) {
          const __m512i field = _mm512_set1_epi32(15 << (4 * j));
          store(job, first + j, channel, mask,
                to_bf16(affine_value(_mm512_and_si512(word.low, field), s_low[j], a.m_low),
                        affine_value(_mm512_and_si512(word.high, field), s_high[j], a.m_high)));
        }
      }
    }
  }
}

// --- small floating-point numbers times a power of two ------------------------------------------

constexpr int exponent_bits(CodeKind code) {
  return code_bits(code) - 1 - small_float(code).mantissa_bits;
}

// The entries with which every value but zero is a normal BF16 number: a scale then only adds to
// the exponent.
constexpr int least_entry(CodeKind code) {
  return small_float(code).bias + small_float(code).mantissa_bits;
}
constexpr int greatest_entry(CodeKind code) {
  return 254 - ((1 << exponent_bits(code)) - 1 - small_float(code).bias);
}

// A magnitude as BF16, with scale 1.
constexpr std::uint16_t bf16_magnitude(CodeKind code, unsigned magnitude) {
  const SmallFloat type = small_float(code);
  unsigned exponent = magnitude >> type.mantissa_bits;
  unsigned mantissa = (magnitude << (7 - type.mantissa_bits)) & 0x7f;
  if (magnitude == 0) return 0;
  if (exponent == 0) {
    exponent = 1;
    while (mantissa < 0x80) {
      mantissa <<= 1;
      --exponent;  // wraps below 0; the sum below wraps back
    }
    mantissa &= 0x7f;
  }
  return static_cast<std::uint16_t>(((exponent + 127U - unsigned(type.bias)) << 7) + mantissa);
}

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
  for (int i = 0; i < kBlockTokens / 4; ++i) {
    for (int channel = 0; channel < d; channel += kLanes) {
      const __mmask32 mask = lanes(d - channel);
      const std::uint32_t* shift = shifts.of + channel / kLanes * kBlockTokens + 4 * i;
      const __m512i word = _mm512_maskz_loadu_epi16(mask, words_of(job) + i * d + channel);
      for (int j = 0; j < 4; ++j) {
        store(job, 4 * i + j, channel, mask,
              _mm512_permutexvar_epi16(_mm512_srli_epi16(word, 4 * j),
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

// Token 8i + j of a strip, from its nibbles and its pairs: 5 bits of magnitude and the sign.
template <int kJ>
inline __m512i value6(__m512i nibbles, __m512i pairs, __m512i table) {
  const __m512i index =
      _mm512_ternarylogic_epi64(_mm512_set1_epi16(15), _mm512_srli_epi16(nibbles, 4 * (kJ % 4)),
                                moved<4 - 2 * kJ>(pairs), 0xca);  // bits 0-3, bit 4
  return with_sign(_mm512_slli_epi16(pairs, 14 - 2 * kJ), _mm512_permutexvar_epi16(index, table));
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
  for (int i = 0; i < kBlockTokens / 8; ++i) {
    for (int channel = 0; channel < d; channel += kLanes) {
      const __mmask32 mask = lanes(d - channel);
      const std::uint32_t* shift = shifts.of + channel / kLanes * kBlockTokens + 8 * i;
      const std::uint16_t* const nibbles = words_of(job) + 2 * i * d + channel;
      const __m512i first = _mm512_maskz_loadu_epi16(mask, nibbles);
      const __m512i second = _mm512_maskz_loadu_epi16(mask, nibbles + d);
      const __m512i pairs = _mm512_maskz_loadu_epi16(mask, words_of(job) + (16 + i) * d + channel);
      const auto put = [&]<int kJ>(__m512i half) {
        store(job, 8 * i + kJ, channel, mask,
              value6<kJ>(half, pairs, shifted(table, nonzero, shift[kJ])));
      };
      put.template operator()<0>(first);
      put.template operator()<1>(first);
      put.template operator()<2>(first);
      put.template operator()<3>(first);
      put.template operator()<4>(second);
      put.template operator()<5>(second);
      put.template operator()<6>(second);
      put.template operator()<7>(second);
    }
  }
  mend(job, count, least_entry(kCode), greatest_entry(kCode));
}

// One of the two codes in words: exponent and mantissa go to BF16's places and `bias` moves the
// exponent. Where the exponent's field is 0 the value is in `table`, by its mantissa.
template <CodeKind kCode, bool kHigh>
inline __m512i value8(__m512i word, __m512i bias, __m512i table) {
  constexpr int kMantissa = small_float(kCode).mantissa_bits;
  constexpr int kPlaces = 7 - kMantissa;
  constexpr int kExponentField = ((1 << exponent_bits(kCode)) - 1) << kMantissa;
  const __m512i magnitude = _mm512_and_si512(
      kHigh ? _mm512_srli_epi16(word, 8 - kPlaces) : _mm512_slli_epi16(word, kPlaces),
      _mm512_set1_epi16(0x7f << kPlaces));
  const __mmask32 subnormal =
      _mm512_testn_epi16_mask(word, _mm512_set1_epi16(kExponentField << (kHigh ? 8 : 0)));
  const __m512i value =
      _mm512_mask_permutexvar_epi16(_mm512_add_epi16(magnitude, bias), subnormal,
                                    kHigh ? _mm512_srli_epi16(word, 8) : word, table);
  return with_sign(kHigh ? word : _mm512_slli_epi16(word, 8), value);
}

// What BF16's bias is ahead of the type's, in the place of the exponent.
template <CodeKind kCode>
constexpr int bias_ahead() {
  return (127 - small_float(kCode).bias) << 7;
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

template <CodeKind kCode>
void open_mxfp8(const OpenJob& job) {
  static constexpr Words32 kTable = subnormal_table<kCode>();
  const int d = job.head_dim;
  const int count = (d + 31) / 32 * kBlockTokens;
  Shifts shifts;
  read_shifts(job, count, bias_ahead<kCode>(), shifts);
  const __m512i table = kTable.vector();
  for (int i = 0; i < kBlockTokens / 2; ++i) {
    for (int channel = 0; channel < d; channel += kLanes) {
      const __mmask32 mask = lanes(d - channel);
      const std::uint32_t* shift = shifts.of + channel / kLanes * kBlockTokens + 2 * i;
      const __m512i word = _mm512_maskz_loadu_epi16(mask, words_of(job) + i * d + channel);
      store(job, 2 * i, channel, mask,
            value8<kCode, false>(word, _mm512_set1_epi32(static_cast<int>(shift[0])),
                                 shifted(table, subnormal_lanes<kCode>(), shift[0])));
      store(job, 2 * i + 1, channel, mask,
            value8<kCode, true>(word, _mm512_set1_epi32(static_cast<int>(shift[1])),
                                shifted(table, subnormal_lanes<kCode>(), shift[1])));
    }
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
  const __m512i bias = _mm512_set1_epi16(static_cast<short>(shift));
  const __m512i table = shifted(kTable.vector(), subnormal_lanes<kCode>(),
                                static_cast<std::uint32_t>(shift) * 0x10001U);
  for (int i = 0; i < kBlockTokens / 2; ++i) {
    for (int channel = 0; channel < d; channel += kLanes) {
      const __mmask32 mask = lanes(d - channel);
      const __m512i word = _mm512_maskz_loadu_epi16(mask, words_of(job) + i * d + channel);
      store(job, 2 * i, channel, mask, value8<kCode, false>(word, bias, table));
      store(job, 2 * i + 1, channel, mask, value8<kCode, true>(word, bias, table));
    }
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

OpenKernel open_kernel_avx512(const Plane& plane) {
  const bool page = plane.groups == Groups::kPage;
  if (plane.code >= CodeKind::kE4m3) {
    const bool known = page || (plane.groups == Groups::kRow && plane.group == kLanes);
    return known ? float_kernel(plane.code, page) : nullptr;
  }
  if (page) return nullptr;
  const bool rows = plane.groups == Groups::kRow;
  switch (plane.code) {
    case CodeKind::kUint2: return rows ? open_rows<2> : open_columns2;
    case CodeKind::kUint4:
    case CodeKind::kSint4: return rows ? open_rows<4> : open_columns4;
    default: return rows ? open_rows8 : nullptr;
  }
}

}  // namespace kvlane::linear
