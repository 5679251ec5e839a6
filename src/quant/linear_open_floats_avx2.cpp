// Small floating-point codes to BF16 rows with AVX2: the way of linear_open_floats_avx512.cpp. A
// scale is a power of two, so it only adds to the exponents of BF16 values; groups whose values
// would leave BF16's normal range are left to the scalar code. What it costs:
// linear_open_avx2.cpp.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_avx2.h"
#include "quant/linear_floats.h"

namespace kvlane::linear {
namespace {

using avx2::kLanes;
using avx2::Pair;
using avx2::Stage;
using avx2::Strip;

// Opens again what vectors got wrong: groups whose scale takes values out of BF16's normal range.
// Those are blocks of zeros, mostly.
inline void mend(const OpenJob& job, int count, int least, int greatest) {
  const __m256i base = _mm256_set1_epi8(static_cast<char>(least));
  const __m256i span = _mm256_set1_epi8(static_cast<char>(greatest - least));
  for (int i = 0; i < count; i += 32) {
    const __m256i above = _mm256_sub_epi8(avx2::load(job.metadata + i), base);
    const __m256i right = _mm256_cmpeq_epi8(_mm256_max_epu8(above, span), span);
    auto wrong = ~static_cast<unsigned>(_mm256_movemask_epi8(right));
    for (; wrong != 0; wrong &= wrong - 1) {
      open_group_scalar(job, i + __builtin_ctz(wrong));
    }
  }
}

inline int mx_entries(const OpenJob& job) { return (job.head_dim + 31) / 32 * kBlockTokens; }

// --- tables: codes of 4 and 6 bits --------------------------------------------------------------

// The BF16 values of 16 codes, as pshufb looks them up.
struct Bytes {
  alignas(16) std::uint8_t low[16];
  alignas(16) std::uint8_t high[16];
};

// What bits of a code above its magnitude are: its sign; nothing.
enum class Top : std::uint8_t { kSign, kNone };

// Codes `first` ... `first` + 15; all but zero times 2^odd.
template <CodeKind kCode, Top kTop>
constexpr Bytes byte_table(unsigned first, unsigned odd) {
  constexpr unsigned kMagnitudes = 1U << (code_bits(kCode) - 1);
  Bytes table{};
  for (unsigned i = 0; i < 16; ++i) {
    unsigned value = bf16_magnitude(kCode, (first + i) % kMagnitudes);
    if (value != 0) value += odd << 7;
    if (kTop == Top::kSign && (i & kMagnitudes) != 0) value |= 0x8000U;
    table.low[i] = static_cast<std::uint8_t>(value & 0xff);
    table.high[i] = static_cast<std::uint8_t>(value >> 8);
  }
  return table;
}

// The scales of 64 tokens of a block of 32 channels as powers of two: 2 n + odd.
class Powers {
 public:
  explicit Powers(const std::byte* entries) : entries_(entries) {
    for (int i = 0; i < kBlockTokens; i += 8) {
      const __m256i e =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(entries + i)));
      const __m256i n = _mm256_srai_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(127)), 1);
      const __m256i each = _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
      avx2::store(n_ + i, _mm256_shuffle_epi8(n, each));
    }
  }

  int odd(int token) const { return (static_cast<int>(entries_[token]) & 1) ^ 1; }
  // n in every byte: what 2^2n adds to the high byte of BF16.
  __m256i n(int token) const { return _mm256_set1_epi32(static_cast<int>(n_[token])); }

 private:
  const std::byte* entries_;
  alignas(32) std::uint32_t n_[kBlockTokens];
};

// Codes of 4 bits, their sign among them.
struct Table4 {
  static constexpr Bytes kOf[2] = {byte_table<CodeKind::kE2m1, Top::kSign>(0, 0),
                                   byte_table<CodeKind::kE2m1, Top::kSign>(0, 1)};

  static __m256i nonzero() {
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1));
  }
  static Pair look_up(__m256i index, const Powers& powers, int token) {
    const Bytes& of = kOf[powers.odd(token)];
    const __m256i high =
        _mm256_add_epi8(avx2::load_twice(of.high), _mm256_and_si256(nonzero(), powers.n(token)));
    return avx2::interleave(_mm256_shuffle_epi8(avx2::load_twice(of.low), index),
                            _mm256_shuffle_epi8(high, index));
  }
};

void open_mxfp4(const OpenJob& job) {
  const int d = job.head_dim;
  Stage stage;
  for (int channel = 0; channel < d; channel += kLanes) {
    const Powers powers(job.metadata + channel / kLanes * kBlockTokens);
    const Strip strip = avx2::strip_of<4>(job, channel, d, stage);
    for (int token = 0; token < kBlockTokens; token += 4) {
      const Pair word = strip.word(token / 4);
      const __m256i low = avx2::low_bytes(word);
      const __m256i high = avx2::high_bytes(word);
      strip.store(token, Table4::look_up(avx2::index_of<0>(low), powers, token));
      strip.store(token + 1, Table4::look_up(avx2::index_of<4>(low), powers, token + 1));
      strip.store(token + 2, Table4::look_up(avx2::index_of<0>(high), powers, token + 2));
      strip.store(token + 3, Table4::look_up(avx2::index_of<4>(high), powers, token + 3));
    }
    avx2::put_back(job, channel, d, stage);
  }
  mend(job, mx_entries(job), least_entry(CodeKind::kE2m1), greatest_entry(CodeKind::kE2m1));
}

// Magnitudes have 5 bits: two tables of 16, of which pshufb makes zero what is not its own.
template <CodeKind kCode>
struct Table6 {
  static constexpr Bytes kSmall[2] = {byte_table<kCode, Top::kNone>(0, 0),
                                      byte_table<kCode, Top::kNone>(0, 1)};
  static constexpr Bytes kLarge[2] = {byte_table<kCode, Top::kNone>(16, 0),
                                      byte_table<kCode, Top::kNone>(16, 1)};

  // sign: in the highest bit of bytes, whatever in the others.
  static Pair look_up(__m256i magnitude, __m256i sign, const Powers& powers, int token) {
    const __m256i nonzero = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const int odd = powers.odd(token);
    const __m256i n = powers.n(token);
    // From 16 on, and below it, the highest bit is set.
    const __m256i small = _mm256_add_epi8(magnitude, _mm256_set1_epi8(0x70));
    const __m256i large = _mm256_sub_epi8(magnitude, _mm256_set1_epi8(16));
    const __m256i small_high =
        _mm256_add_epi8(avx2::load_twice(kSmall[odd].high), _mm256_and_si256(nonzero, n));
    const __m256i large_high = _mm256_add_epi8(avx2::load_twice(kLarge[odd].high), n);
    const __m256i low =
        _mm256_or_si256(_mm256_shuffle_epi8(avx2::load_twice(kSmall[odd].low), small),
                        _mm256_shuffle_epi8(avx2::load_twice(kLarge[odd].low), large));
    const __m256i high = _mm256_or_si256(_mm256_shuffle_epi8(small_high, small),
                                         _mm256_shuffle_epi8(large_high, large));
    const __m256i top = _mm256_and_si256(sign, _mm256_set1_epi8(static_cast<char>(0x80)));
    return avx2::interleave(low, _mm256_or_si256(high, top));
  }
};

// Shifts left by a constant of either sign; bits of the neighbour come into bytes.
template <int kBits>
inline __m256i moved(__m256i x) {
  if constexpr (kBits >= 0) return _mm256_slli_epi16(x, kBits);
  return _mm256_srli_epi16(x, -kBits);
}

// Tokens kJ ... 3 of the 4 whose pairs a byte has. nibbles: of tokens 0 and 1, of 2 and 3.
template <CodeKind kCode, int kJ = 0>
inline void open_six(const Strip& strip, int token, const __m256i (&nibbles)[2], __m256i pairs,
                     const Powers& powers) {
  const __m256i four = avx2::index_of<4 * (kJ % 2)>(nibbles[kJ / 2]);
  const __m256i fifth = _mm256_and_si256(moved<4 - 2 * kJ>(pairs), _mm256_set1_epi8(16));
  strip.store(token + kJ, Table6<kCode>::look_up(_mm256_or_si256(four, fifth),
                                                 moved<6 - 2 * kJ>(pairs), powers, token + kJ));
  if constexpr (kJ < 3) open_six<kCode, kJ + 1>(strip, token, nibbles, pairs, powers);
}

template <CodeKind kCode>
void open_mxfp6(const OpenJob& job) {
  const int d = job.head_dim;
  Stage stage;
  for (int channel = 0; channel < d; channel += kLanes) {
    const Powers powers(job.metadata + channel / kLanes * kBlockTokens);
    const Strip strip = avx2::strip_of<6>(job, channel, d, stage);
    for (int i = 0; i < kBlockTokens / 8; ++i) {
      const Pair pairs = strip.word(16 + i);
      const Pair first = strip.word(2 * i);
      const Pair second = strip.word(2 * i + 1);
      const __m256i nibbles[2][2] = {{avx2::low_bytes(first), avx2::high_bytes(first)},
                                     {avx2::low_bytes(second), avx2::high_bytes(second)}};
      open_six<kCode>(strip, 8 * i, nibbles[0], avx2::low_bytes(pairs), powers);
      open_six<kCode>(strip, 8 * i + 4, nibbles[1], avx2::high_bytes(pairs), powers);
    }
    avx2::put_back(job, channel, d, stage);
  }
  mend(job, mx_entries(job), least_entry(kCode), greatest_entry(kCode));
}

// --- codes of 8 bits ----------------------------------------------------------------------------

// Values of subnormal codes, short of bias_ahead(), which comes with the scale.
template <CodeKind kCode>
struct Subnormals {
  alignas(16) std::uint16_t words[8];

  constexpr Subnormals() : words{} {
    for (unsigned i = 1; i < (1U << small_float(kCode).mantissa_bits); ++i) {
      words[i] = static_cast<std::uint16_t>(bf16_magnitude(kCode, i) - bias_ahead<kCode>());
    }
  }
};

// The two codes of words, in their low and their high byte. Sign, exponent and mantissa go to
// BF16's places, and `bias` moves the exponent.
template <CodeKind kCode>
struct Eight {
  static constexpr Subnormals<kCode> kSubnormals{};
  static constexpr int kMantissaBits = small_float(kCode).mantissa_bits;
  static constexpr int kPlaces = 7 - kMantissaBits;
  static constexpr int kExponentField = ((1 << exponent_bits(kCode)) - 1) << kMantissaBits;

  // Bytes whose exponent's field is 0.
  static __m256i subnormal(__m256i word) {
    const __m256i exponents = _mm256_and_si256(word, _mm256_set1_epi8(kExponentField));
    return _mm256_cmpeq_epi8(exponents, _mm256_setzero_si256());
  }
  static bool has_subnormal(Pair word) {
    const __m256i some = _mm256_or_si256(subnormal(word.low), subnormal(word.high));
    return _mm256_testz_si256(some, some) == 0;
  }

  static __m256i low(__m256i word) { return high(_mm256_slli_epi16(word, 8)); }
  // The sign comes down with the shift, into bits that go.
  static __m256i high(__m256i word) {
    constexpr int kField = 0x8000 | 0x7f << kPlaces;
    return _mm256_and_si256(_mm256_srai_epi16(word, 8 - kPlaces),
                            _mm256_set1_epi16(static_cast<short>(kField)));
  }

  static __m256i normal(__m256i placed, __m256i bias) { return _mm256_add_epi16(placed, bias); }
  // With the values of subnormal codes from a table, by their mantissa.
  static __m256i any(__m256i placed, __m256i bias) {
    const __m256i nonzero =
        _mm256_broadcastsi128_si256(_mm_setr_epi16(0, -1, -1, -1, -1, -1, -1, -1));
    const __m256i table =
        _mm256_add_epi16(avx2::load_twice(kSubnormals.words), _mm256_and_si256(nonzero, bias));
    const __m256i mantissa = _mm256_and_si256(_mm256_srli_epi16(placed, kPlaces),
                                              _mm256_set1_epi16((1 << kMantissaBits) - 1));
    // Both bytes of entry `mantissa`.
    const __m256i places = _mm256_add_epi16(_mm256_mullo_epi16(mantissa, _mm256_set1_epi16(0x0202)),
                                            _mm256_set1_epi16(0x0100));
    const __m256i sign = _mm256_and_si256(placed, _mm256_set1_epi16(static_cast<short>(0x8000)));
    const __m256i exponent = _mm256_and_si256(placed, _mm256_set1_epi16(kExponentField << kPlaces));
    return _mm256_blendv_epi8(normal(placed, bias),
                              _mm256_or_si256(_mm256_shuffle_epi8(table, places), sign),
                              _mm256_cmpeq_epi16(exponent, _mm256_setzero_si256()));
  }
};

// `step` is 0 where all tokens have one bias.
template <CodeKind kCode>
inline void open_strip8(const Strip& strip, const std::uint32_t* bias, int step) {
  using Code = Eight<kCode>;
  for (int token = 0; token < kBlockTokens; token += 2, bias += 2 * step) {
    const Pair word = strip.word(token / 2);
    const __m256i low = _mm256_set1_epi32(static_cast<int>(bias[0]));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(bias[step]));
    if (!Code::has_subnormal(word)) [[likely]] {
      strip.store(
          token, {Code::normal(Code::low(word.low), low), Code::normal(Code::low(word.high), low)});
      strip.store(token + 1, {Code::normal(Code::high(word.low), high),
                              Code::normal(Code::high(word.high), high)});
    } else {
      strip.store(token,
                  {Code::any(Code::low(word.low), low), Code::any(Code::low(word.high), low)});
      strip.store(token + 1,
                  {Code::any(Code::high(word.low), high), Code::any(Code::high(word.high), high)});
    }
  }
}

// What the scales of 64 tokens add to BF16 bits, twice in each number.
template <CodeKind kCode>
struct Biases {
  alignas(32) std::uint32_t of[kBlockTokens];

  explicit Biases(const std::byte* entries) {
    for (int i = 0; i < kBlockTokens; i += 8) {
      const __m256i e =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(entries + i)));
      const __m256i bias = _mm256_add_epi32(_mm256_slli_epi32(e, 7),
                                            _mm256_set1_epi32(bias_ahead<kCode>() - (127 << 7)));
      avx2::store(of + i, _mm256_blend_epi16(bias, _mm256_slli_epi32(bias, 16), 0xaa));
    }
  }
};

template <CodeKind kCode>
void open_mxfp8(const OpenJob& job) {
  const int d = job.head_dim;
  Stage stage;
  for (int channel = 0; channel < d; channel += kLanes) {
    const Biases<kCode> biases(job.metadata + channel / kLanes * kBlockTokens);
    open_strip8<kCode>(avx2::strip_of<8>(job, channel, d, stage), biases.of, 1);
    avx2::put_back(job, channel, d, stage);
  }
  mend(job, mx_entries(job), least_entry(kCode), greatest_entry(kCode));
}

template <CodeKind kCode>
void open_fp8(const OpenJob& job) {
  const int d = job.head_dim;
  const int entry = static_cast<int>(*job.metadata);
  if (entry < least_entry(kCode) || entry > greatest_entry(kCode)) return open_scalar(job);
  const int shift = ((entry - 127) * 128 + bias_ahead<kCode>()) & 0xffff;
  const std::uint32_t bias = static_cast<std::uint32_t>(shift) * 0x10001U;
  Stage stage;
  for (int channel = 0; channel < d; channel += kLanes) {
    open_strip8<kCode>(avx2::strip_of<8>(job, channel, d, stage), &bias, 0);
    avx2::put_back(job, channel, d, stage);
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

OpenKernel avx2::open_float_kernel(const Plane& plane) {
  const bool page = plane.groups == Groups::kPage;
  const bool known = page || (plane.groups == Groups::kRow && plane.group == kLanes);
  return known ? float_kernel(plane.code, page) : nullptr;
}

}  // namespace kvlane::linear
