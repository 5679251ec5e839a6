// Linear codes to BF16 rows with AVX2: the way of linear_open_avx512_bf16.cpp, strips of 32
// channels as two vectors of 16. Here are the codes that are integers; linear_open_floats_avx2.cpp
// has the floating-point ones.
//
// A lookup is pshufb, of 32 channels at once: bytes in a table of 16, once for the low and once for
// the high bytes of BF16. Nothing converts to BF16 but integer arithmetic, 4 operations for 8
// values: tables pay, and where there are none even and odd channels are computed apart, as that
// leaves both in their places. Operations for 32 values besides their two stores (those of AVX-512
// are in linear_open_avx512_bf16.cpp):
//
//   2 bits in rows         shift, and, two lookups, two unpacks         7 + table (6)
//   4 bits in rows         the same                                     7 + table (17)
//   mxfp4                  the same; the scale is added to the table    9
//   mxfp6                  two tables of 16 for each byte, sign         22
//   fp8, mxfp8             shift with the sign, and, add                10
//   8 bits in rows         and, convert, multiply-add, round            34
//   2 bits in columns      bits of the code choose between four values  20
//   4 bits in columns      and, convert, multiply-add, round            33
//
// A page of head_dim 128 has 512 times 32 values. At three operations a cycle those of kivi:bits=2
// take some 2,800 cycles and those of int8 5,800; 17 GB/s at 3.5 GHz bring their bytes in 1,250 and
// 3,400: here arithmetic is the limit, but for FP8 and MX.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_avx2.h"

namespace kvlane::linear {
namespace {

using avx2::kEntriesMax;
using avx2::kLanes;
using avx2::Pair;
using avx2::Stage;
using avx2::Strip;

// Of all groups of a plane; c is the code as an unsigned number. Room for a strip beyond the last
// group: it is loaded, and not used.
struct Affine {
  alignas(32) float s[kEntriesMax + kLanes];
  alignas(32) float m[kEntriesMax + kLanes];
};

// Lanes of 32 bits below `count`.
inline __m256i lanes8(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Halves (fp16) in the low 16 bits of lanes, to floats.
inline __m256 half_floats(__m256i halves) {
  const __m256i packed =
      _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), _MM_SHUFFLE(3, 1, 2, 0));
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

// Where the exponent's bits at `field` are all set: what is not finite.
inline __m256i not_finite(__m256i x, int field) {
  const __m256i bits = _mm256_set1_epi32(field);
  return _mm256_cmpeq_epi32(_mm256_and_si256(x, bits), bits);
}

// False when an entry is not finite, or there are too many: work for the scalar code.
inline bool read_affine(const OpenJob& job, int count, Affine& affine) {
  if (count > kEntriesMax) return false;
  const bool has_min = job.plane.entry == Entry::kMinScale;
  const float offset = job.plane.code == CodeKind::kSint8   ? 128
                       : job.plane.code == CodeKind::kSint4 ? 8
                                                            : 0;
  __m256i bad = _mm256_setzero_si256();
  for (int i = 0; i < count; i += 8) {
    if (has_min) {
      const __m256i pairs = _mm256_maskload_epi32(
          reinterpret_cast<const int*>(job.metadata + std::ptrdiff_t{4} * i), lanes8(count - i));
      bad = _mm256_or_si256(bad, not_finite(pairs, 0x7c00));
      bad = _mm256_or_si256(bad, not_finite(pairs, 0x7c000000));
      const __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
      _mm256_store_ps(affine.m + i, half_floats(low));
      _mm256_store_ps(affine.s + i, half_floats(_mm256_srli_epi32(pairs, 16)));
    } else {
      // Rows only: a whole number of 64.
      const __m128i halves =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(job.metadata + std::ptrdiff_t{2} * i));
      bad = _mm256_or_si256(bad, not_finite(_mm256_cvtepu16_epi32(halves), 0x7c00));
      const __m256 s = _mm256_cvtph_ps(halves);
      _mm256_store_ps(affine.s + i, s);
      // Exact, and so is s * c + m then: s * (c - offset) has few bits.
      _mm256_store_ps(affine.m + i, _mm256_mul_ps(s, _mm256_set1_ps(-offset)));
    }
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

inline int row_group_count(const OpenJob& job) {
  return (job.head_dim + job.plane.group - 1) / job.plane.group;
}

// The nearest BF16, half to even, in the high halves of lanes; something in the low ones. Values
// are finite, and none is subnormal: all are multiples of 2^-24.
inline __m256i rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

// Of 8 even channels and the odd ones between them.
inline __m256i to_bf16(__m256 even, __m256 odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(rounded(even), 16), rounded(odd), 0xaa);
}

// --- tables: codes of 2 or 4 bits in rows -------------------------------------------------------

// 16 and 16 words, of 32 bits each, to their low and their high bytes: the four bytes of the first,
// second, third and fourth vector side by side in either half.
inline Pair bytes_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const Pair words = {
      _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)),
      _mm256_packus_epi32(_mm256_srli_epi32(c, 16), _mm256_srli_epi32(d, 16)),
  };
  return {avx2::low_bytes(words), avx2::high_bytes(words)};
}

// The BF16 values of a group's codes, for 64 tokens: low bytes and high bytes.
template <int kBits>
struct Tables;

template <>
struct Tables<4> {
  alignas(32) std::uint8_t low[kBlockTokens][16];
  alignas(32) std::uint8_t high[kBlockTokens][16];

  void make(const float* s, const float* m) {
    const __m256 first = _mm256_setr_ps(0, 1, 2, 3, 8, 9, 10, 11);
    const __m256 second = _mm256_setr_ps(4, 5, 6, 7, 12, 13, 14, 15);
    for (int token = 0; token < kBlockTokens; token += 2) {
      const auto values = [&](int j, __m256 numbers) {
        return rounded(
            _mm256_fmadd_ps(_mm256_set1_ps(s[token + j]), numbers, _mm256_set1_ps(m[token + j])));
      };
      const Pair bytes =
          bytes_of(values(0, first), values(0, second), values(1, first), values(1, second));
      avx2::store(low[token], _mm256_permute4x64_epi64(bytes.low, _MM_SHUFFLE(3, 1, 2, 0)));
      avx2::store(high[token], _mm256_permute4x64_epi64(bytes.high, _MM_SHUFFLE(3, 1, 2, 0)));
    }
  }
  __m256i low_vector(int token) const { return avx2::load_twice(low[token]); }
  __m256i high_vector(int token) const { return avx2::load_twice(high[token]); }
};

template <>
struct Tables<2> {
  alignas(32) std::uint32_t low[kBlockTokens];
  alignas(32) std::uint32_t high[kBlockTokens];

  void make(const float* s, const float* m) {
    const __m256 numbers = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
    for (int token = 0; token < kBlockTokens; token += 8) {
      const __m256 scale = _mm256_load_ps(s + token);
      const __m256 least = _mm256_load_ps(m + token);
      // Of tokens j and j + 4.
      const auto values = [&](__m256 four_scales, __m256 four_least) {
        return rounded(_mm256_fmadd_ps(four_scales, numbers, four_least));
      };
      const Pair bytes =
          bytes_of(values(_mm256_permute_ps(scale, 0x00), _mm256_permute_ps(least, 0x00)),
                   values(_mm256_permute_ps(scale, 0x55), _mm256_permute_ps(least, 0x55)),
                   values(_mm256_permute_ps(scale, 0xaa), _mm256_permute_ps(least, 0xaa)),
                   values(_mm256_permute_ps(scale, 0xff), _mm256_permute_ps(least, 0xff)));
      avx2::store(low + token, bytes.low);
      avx2::store(high + token, bytes.high);
    }
  }
  __m256i low_vector(int token) const { return _mm256_set1_epi32(static_cast<int>(low[token])); }
  __m256i high_vector(int token) const { return _mm256_set1_epi32(static_cast<int>(high[token])); }
};

// The tokens of bytes, from `token` on.
template <int kBits, int kShift = 0>
inline void look_up(const Strip& strip, const Tables<kBits>& tables, int token, __m256i bytes) {
  const __m256i index = avx2::index_of<kShift>(bytes);
  strip.store(token, avx2::interleave(_mm256_shuffle_epi8(tables.low_vector(token), index),
                                      _mm256_shuffle_epi8(tables.high_vector(token), index)));
  if constexpr (kShift + kBits < 8) {
    look_up<kBits, kShift + kBits>(strip, tables, token + 1, bytes);
  }
}

template <int kBits>
void open_rows(const OpenJob& job) {
  constexpr int kCodes = 16 / kBits;
  const int d = job.head_dim;
  const int group = job.plane.group;
  Affine affine;
  if (!read_affine(job, row_group_count(job) * kBlockTokens, affine)) return open_scalar(job);
  Tables<kBits> tables;
  Stage stage;
  int entry = 0;
  for (int first = 0; first < d; first += group, entry += kBlockTokens) {
    tables.make(affine.s + entry, affine.m + entry);
    const int end = d - first < group ? d : first + group;
    for (int channel = first; channel < end; channel += kLanes) {
      const Strip strip = avx2::strip_of<kBits>(job, channel, end, stage);
      for (int token = 0; token < kBlockTokens; token += kCodes) {
        const Pair word = strip.word(token / kCodes);
        look_up<kBits>(strip, tables, token, avx2::low_bytes(word));
        look_up<kBits>(strip, tables, token + kCodes / 2, avx2::high_bytes(word));
      }
      avx2::put_back(job, channel, end, stage);
    }
  }
}

// --- codes that are computed --------------------------------------------------------------------

// m and s of 16 channels, of even and odd ones.
struct Channels {
  __m256 s_even, s_odd, m_even, m_odd;
};

// Of 16 channels in words, the codes in bits kShift ... kShift + kBits - 1: they stay where they
// are, as c * 2^k times s * 2^-k is the same product. `a.s` is for codes at bit 0.
template <int kBits, int kShift>
inline __m256i values_of(__m256i word, const Channels& a) {
  constexpr int kField = ((1 << kBits) - 1) << kShift;
  const __m256 part = _mm256_set1_ps(1.0F / static_cast<float>(1 << kShift));
  const __m256i even = _mm256_and_si256(word, _mm256_set1_epi32(kField));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(kField));
  return to_bf16(_mm256_fmadd_ps(_mm256_cvtepi32_ps(even), _mm256_mul_ps(a.s_even, part), a.m_even),
                 _mm256_fmadd_ps(_mm256_cvtepi32_ps(odd), _mm256_mul_ps(a.s_odd, part), a.m_odd));
}

inline Channels same(float s, float m) {
  return {_mm256_set1_ps(s), _mm256_set1_ps(s), _mm256_set1_ps(m), _mm256_set1_ps(m)};
}

// Codes of 8 bits. Signed ones have the m of unsigned ones: s c + m is exact then.
void open_rows8(const OpenJob& job) {
  const int d = job.head_dim;
  const int group = job.plane.group;
  Affine affine;
  if (!read_affine(job, row_group_count(job) * kBlockTokens, affine)) return open_scalar(job);
  Stage stage;
  int entry = 0;
  for (int first = 0; first < d; first += group, entry += kBlockTokens) {
    const int end = d - first < group ? d : first + group;
    for (int channel = first; channel < end; channel += kLanes) {
      const Strip strip = avx2::strip_of<8>(job, channel, end, stage);
      for (int token = 0; token < kBlockTokens; token += 2) {
        const Pair word = strip.word(token / 2);
        const float* const s = affine.s + entry + token;
        const float* const m = affine.m + entry + token;
        const Channels one = same(s[0], m[0]);
        strip.store(token, {values_of<8, 0>(word.low, one), values_of<8, 0>(word.high, one)});
        const Channels two = same(s[1], m[1]);
        strip.store(token + 1, {values_of<8, 8>(word.low, two), values_of<8, 8>(word.high, two)});
      }
      avx2::put_back(job, channel, end, stage);
    }
  }
}

// --- columns ------------------------------------------------------------------------------------

// Even and odd ones of 16 numbers.
inline void split(const float* from, __m256& even, __m256& odd) {
  const __m256 low = _mm256_loadu_ps(from);
  const __m256 high = _mm256_loadu_ps(from + 8);
  const auto in_order = [](__m256 x) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
  };
  even = in_order(_mm256_shuffle_ps(low, high, 0x88));
  odd = in_order(_mm256_shuffle_ps(low, high, 0xdd));
}

inline Channels channels_of(const Affine& affine, int entry) {
  Channels channels;
  split(affine.s + entry, channels.s_even, channels.s_odd);
  split(affine.m + entry, channels.m_even, channels.m_odd);
  return channels;
}

// The four values of 16 channels while a group lasts, as what bits of the code change.
struct Four {
  __m256i zero, one, two, both;  // value 0; what 1, what 2 and what both change in it

  explicit Four(const Channels& a) {
    const auto value = [&](float code) {
      const __m256 c = _mm256_set1_ps(code);
      return to_bf16(_mm256_fmadd_ps(a.s_even, c, a.m_even), _mm256_fmadd_ps(a.s_odd, c, a.m_odd));
    };
    zero = value(0);
    one = _mm256_xor_si256(zero, value(1));
    const __m256i value_two = value(2);
    two = _mm256_xor_si256(zero, value_two);
    both = _mm256_xor_si256(one, _mm256_xor_si256(value_two, value(3)));
  }

  template <int kToken>
  __m256i of(__m256i word) const {
    const auto set = [&](int bit) {
      const __m256i mask = _mm256_set1_epi16(static_cast<short>(1 << bit));
      return _mm256_cmpeq_epi16(_mm256_and_si256(word, mask), mask);
    };
    const __m256i has_one = set(2 * kToken);
    const __m256i has_two = set(2 * kToken + 1);
    const __m256i below = _mm256_xor_si256(zero, _mm256_and_si256(has_one, one));
    const __m256i change = _mm256_xor_si256(two, _mm256_and_si256(has_one, both));
    return _mm256_xor_si256(below, _mm256_and_si256(has_two, change));
  }
};

template <int kToken = 0>
inline void choose(const Strip& strip, int token, Pair word, const Four& low, const Four& high) {
  strip.store(token + kToken, {low.of<kToken>(word.low), high.of<kToken>(word.high)});
  if constexpr (kToken < 7) choose<kToken + 1>(strip, token, word, low, high);
}

// body(strip, first token, entry) for each group of tokens of each strip.
template <int kBits, class Body>
inline void open_columns(const OpenJob& job, const Body& body) {
  Stage stage;
  for (int channel = 0; channel < job.head_dim; channel += kLanes) {
    const Strip strip = avx2::strip_of<kBits>(job, channel, job.head_dim, stage);
    for (int first = 0; first < kBlockTokens; first += job.plane.group) {
      body(strip, first, first / job.plane.group * job.head_dim + channel);
    }
    avx2::put_back(job, channel, job.head_dim, stage);
  }
}

void open_columns2(const OpenJob& job) {
  Affine affine;
  const int group = job.plane.group;
  if (!read_affine(job, kBlockTokens / group * job.head_dim, affine)) return open_scalar(job);
  open_columns<2>(job, [&](const Strip& strip, int first, int entry) {
    const Four low(channels_of(affine, entry));
    const Four high(channels_of(affine, entry + 16));
    for (int token = first; token < first + group; token += 8) {
      choose(strip, token, strip.word(token / 8), low, high);
    }
  });
}

// 16 channels at a time: registers hold what they need.
void open_columns4(const OpenJob& job) {
  Affine affine;
  const int group = job.plane.group;
  if (!read_affine(job, kBlockTokens / group * job.head_dim, affine)) return open_scalar(job);
  open_columns<4>(job, [&](const Strip& strip, int first, int entry) {
    for (int half = 0; half < kLanes; half += 16) {
      const Channels a = channels_of(affine, entry + half);
      for (int token = first; token < first + group; token += 4) {
        const __m256i word = avx2::load(strip.words + token / 4 * strip.d + half);
        std::uint16_t* const rows = strip.rows + token * strip.d + half;
        avx2::store(rows, values_of<4, 0>(word, a));
        avx2::store(rows + strip.d, values_of<4, 4>(word, a));
        avx2::store(rows + 2 * strip.d, values_of<4, 8>(word, a));
        avx2::store(rows + 3 * strip.d, values_of<4, 12>(word, a));
      }
    }
  });
}

}  // namespace

OpenKernel open_kernel_avx2(const Plane& plane) {
  if (plane.code >= CodeKind::kE4m3) return avx2::open_float_kernel(plane);
  if (plane.groups == Groups::kPage) return nullptr;
  const bool rows = plane.groups == Groups::kRow;
  switch (plane.code) {
    case CodeKind::kUint2: return rows ? open_rows<2> : open_columns2;
    case CodeKind::kUint4:
    case CodeKind::kSint4: return rows ? open_rows<4> : open_columns4;
    default: return rows ? open_rows8 : nullptr;
  }
}

}  // namespace kvlane::linear
