// Linear codes to BF16 rows with AVX-512: what runs for every page at every decode step. Here are
// the codes that are integers; linear_open_floats_avx512.cpp has the floating-point ones.
//
// A vector is 32 channels of a word row, 2, 4 or 8 tokens: one load serves so many stores, and
// nothing but lookups crosses lanes. Strips of 32 channels go down all word rows. What remains for
// 32 values besides their store, in operations on the two ports that vectors have (shifts run on
// one of them only, vpermw on both, a narrowing to BF16 takes two cycles):
//
//   2 or 4 bits in rows    shift, vpermw in the group's table of BF16 values           3 + table
//   mxfp4                  the same; the block's scale is added to the table           4
//   mxfp6                  5 bits from two words, vpermw, sign                         8
//   fp8, mxfp8             bits moved, the scale added; subnormals are looked up,      4.5
//                          which words without any leave out
//   8 bits in rows         bytes placed into floats, multiply-add, narrow              6 to 8
//   2 bits in columns      two masks choose one of four vectors of the group           5
//   4 bits in columns      and, convert, multiply-add, narrow, twice                   8.5
//
// At head_dim 128 a page has 512 such vectors, so stores alone take 512 cycles. A core that gets 17
// GB/s from memory at 3.5 GHz needs 1,250 cycles for the 6 KB of a page of kivi:bits=2 and 3,400
// for the 16 KB of one of 8 bits: opening is the smaller part where pages come from memory, as long
// as somebody asked for them before.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_avx512.h"

namespace kvlane::linear {
namespace {

inline __mmask16 lanes16(int count) {
  return count >= 16 ? __mmask16{0xffff} : count <= 0 ? __mmask16{0} : __mmask16((1U << count) - 1);
}

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

// --- tables: codes of 2 or 4 bits in rows -------------------------------------------------------

// The BF16 values of a group's codes, for 64 tokens. Bits of the next code above do not matter to
// vpermw when the table repeats.
template <int kBits>
struct Tables;

template <>
struct Tables<4> {
  alignas(64) std::uint16_t of[kBlockTokens][16];

  void make(const float* s, const float* m) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int token = 0; token < kBlockTokens; token += 2) {
      const __m512 even =
          _mm512_fmadd_ps(_mm512_set1_ps(s[token]), numbers, _mm512_set1_ps(m[token]));
      const __m512 odd =
          _mm512_fmadd_ps(_mm512_set1_ps(s[token + 1]), numbers, _mm512_set1_ps(m[token + 1]));
      _mm512_store_si512(of[token], to_bf16(even, odd));
    }
  }
  __m512i vector(int token) const {
    return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(of[token])));
  }
};

template <>
struct Tables<2> {
  alignas(64) std::uint16_t of[kBlockTokens][4];

  void make(const float* s, const float* m) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    const __m512i each_four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const auto four = [&](int token) {
      const __m512 scale = _mm512_castps128_ps512(_mm_load_ps(s + token));
      const __m512 least = _mm512_castps128_ps512(_mm_load_ps(m + token));
      return _mm512_fmadd_ps(_mm512_permutexvar_ps(each_four, scale), numbers,
                             _mm512_permutexvar_ps(each_four, least));
    };
    for (int token = 0; token < kBlockTokens; token += 8) {
      _mm512_store_si512(of[token], to_bf16(four(token), four(token + 4)));
    }
  }
  __m512i vector(int token) const {
    long long four;
    __builtin_memcpy(&four, of[token], sizeof(four));
    return _mm512_set1_epi64(four);
  }
};

template <int kBits>
inline void look_up(const Strip& strip, const Tables<kBits>& tables) {
  constexpr int kCodes = 16 / kBits;
  for (int i = 0; i < kBlockTokens / kCodes; ++i) {
    const __m512i word = strip.word(i);
    for (int j = 0; j < kCodes; ++j) {
      const int token = kCodes * i + j;
      strip.store(token, _mm512_permutexvar_epi16(_mm512_srli_epi16(word, kBits * j),
                                                  tables.vector(token)));
    }
  }
}

template <int kBits>
void open_rows(const OpenJob& job) {
  const int d = job.head_dim;
  const int group = job.plane.group;
  Affine affine;
  if (!read_affine(job, row_group_count(job) * kBlockTokens, affine)) return open_scalar(job);
  Tables<kBits> tables;
  int entry = 0;
  for (int first = 0; first < d; first += group, entry += kBlockTokens) {
    tables.make(affine.s + entry, affine.m + entry);
    const int end = d - first < group ? d : first + group;
    for (int channel = first; channel < end; channel += kLanes) {
      look_up<kBits>(strip_of(job, channel, end), tables);
    }
  }
}

// --- codes of 8 bits in rows --------------------------------------------------------------------

// Bytes of codes in the second byte of 32-bit lanes, around them the bits of 2^15: floats 2^15 + c.
struct Placement {
  __m512i low[2], high[2];  // of token 0 and 1: channels 0-15 and 16-31

  Placement() {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int token = 0; token < 2; ++token) {
      const __m512i byte = _mm512_add_epi32(_mm512_slli_epi32(lane, 1), _mm512_set1_epi32(token));
      low[token] = _mm512_slli_epi32(byte, 8);
      high[token] = _mm512_slli_epi32(_mm512_add_epi32(byte, _mm512_set1_epi32(32)), 8);
    }
  }
};

inline __m512 placed(__m512i word, __m512i places) {
  return _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(_mm512_set1_epi32(0x47000000),
                                                          0x2222222222222222, places, word));
}

// One rounding to fp32, of the exact m + s c. For signed codes `m` is that of 2^15 + c; else 2^15
// has to go first, as m - 2^15 s may not be exact.
template <bool kSigned>
inline __m512i values8(__m512i word, __m512i low_places, __m512i high_places, float s, float m) {
  __m512 low = placed(word, low_places);
  __m512 high = placed(word, high_places);
  if constexpr (!kSigned) {
    low = _mm512_sub_ps(low, _mm512_set1_ps(0x1p15F));
    high = _mm512_sub_ps(high, _mm512_set1_ps(0x1p15F));
  }
  const __m512 scale = _mm512_set1_ps(s);
  const __m512 least = _mm512_set1_ps(m);
  return to_bf16(_mm512_fmadd_ps(low, scale, least), _mm512_fmadd_ps(high, scale, least));
}

template <bool kSigned>
void open_rows8(const OpenJob& job) {
  const int d = job.head_dim;
  const int group = job.plane.group;
  Affine affine;
  if (!read_affine(job, row_group_count(job) * kBlockTokens, affine)) return open_scalar(job);
  if constexpr (kSigned) {
    // s (c - 128) = s (2^15 + c) - 257 * 128 s: exact, as s has 11 bits.
    for (int i = 0; i < row_group_count(job) * kBlockTokens; i += 16) {
      _mm512_store_ps(affine.m + i,
                      _mm512_mul_ps(_mm512_load_ps(affine.m + i), _mm512_set1_ps(257)));
    }
  }
  const Placement places;
  int entry = 0;
  for (int first = 0; first < d; first += group, entry += kBlockTokens) {
    const int end = d - first < group ? d : first + group;
    for (int channel = first; channel < end; channel += kLanes) {
      const Strip strip = strip_of(job, channel, end);
      for (int token = 0; token < kBlockTokens; token += 2) {
        const __m512i word = strip.word(token / 2);
        const float* s = affine.s + entry + token;
        const float* m = affine.m + entry + token;
        strip.store(token, values8<kSigned>(word, places.low[0], places.high[0], s[0], m[0]));
        strip.store(token + 1, values8<kSigned>(word, places.low[1], places.high[1], s[1], m[1]));
      }
    }
  }
}

// --- columns ------------------------------------------------------------------------------------

// Room for a strip beyond the last one: it is loaded, and not used.
struct ColumnAffine {
  Affine affine;
  float beyond[kLanes];
};

// m and s of 32 channels, for a run of tokens.
struct Column {
  __m512 s_low, s_high, m_low, m_high;

  Column(const ColumnAffine& all, int entry)
      : s_low(_mm512_loadu_ps(all.affine.s + entry)),
        s_high(_mm512_loadu_ps(all.affine.s + entry + 16)),
        m_low(_mm512_loadu_ps(all.affine.m + entry)),
        m_high(_mm512_loadu_ps(all.affine.m + entry + 16)) {}
};

// Each channel has four values while its group lasts.
void open_columns2(const OpenJob& job) {
  const int d = job.head_dim;
  const int group = job.plane.group;
  ColumnAffine columns;
  if (!read_affine(job, kBlockTokens / group * d, columns.affine)) return open_scalar(job);
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d);
    for (int first = 0; first < kBlockTokens; first += group) {
      const Column column(columns, first / group * d + channel);
      __m512i values[4];
      for (int c = 0; c < 4; ++c) {
        const __m512 code = _mm512_set1_ps(static_cast<float>(c));
        values[c] = to_bf16(_mm512_fmadd_ps(column.s_low, code, column.m_low),
                            _mm512_fmadd_ps(column.s_high, code, column.m_high));
      }
      for (int token = first; token < first + group; token += 8) {
        const __m512i word = strip.word(token / 8);
        for (int j = 0; j < 8; ++j) {
          const __mmask32 one =
              _mm512_test_epi16_mask(word, _mm512_set1_epi16(static_cast<short>(1 << (2 * j))));
          const __mmask32 two =
              _mm512_test_epi16_mask(word, _mm512_set1_epi16(static_cast<short>(2 << (2 * j))));
          const __m512i below = _mm512_mask_blend_epi16(one, values[0], values[1]);
          const __m512i above = _mm512_mask_blend_epi16(one, values[2], values[3]);
          strip.store(token + j, _mm512_mask_blend_epi16(two, below, above));
        }
      }
    }
  }
}

// Codes stay where they are in their words: c * 2^(4j) times s * 2^(-4j) is the same product.
void open_columns4(const OpenJob& job) {
  const int d = job.head_dim;
  const int group = job.plane.group;
  ColumnAffine columns;
  if (!read_affine(job, kBlockTokens / group * d, columns.affine)) return open_scalar(job);
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d);
    for (int first = 0; first < kBlockTokens; first += group) {
      const Column column(columns, first / group * d + channel);
      __m512 s_low[4];
      __m512 s_high[4];
      for (int j = 0; j < 4; ++j) {
        const __m512 part = _mm512_set1_ps(1.0F / static_cast<float>(1 << (4 * j)));
        s_low[j] = _mm512_mul_ps(column.s_low, part);
        s_high[j] = _mm512_mul_ps(column.s_high, part);
      }
      for (int token = first; token < first + group; token += 4) {
        const __m512i word = strip.word(token / 4);
        const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(word));
        const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(word, 1));
        for (int j = 0; j < 4; ++j) {
          const __m512i field = _mm512_set1_epi32(15 << (4 * j));
          const __m512 code_low = _mm512_cvtepi32_ps(_mm512_and_si512(low, field));
          const __m512 code_high = _mm512_cvtepi32_ps(_mm512_and_si512(high, field));
          strip.store(token + j, to_bf16(_mm512_fmadd_ps(code_low, s_low[j], column.m_low),
                                         _mm512_fmadd_ps(code_high, s_high[j], column.m_high)));
        }
      }
    }
  }
}

}  // namespace

OpenKernel open_integers_avx512_bf16(const Plane& plane) {
  if (plane.groups == Groups::kPage) return nullptr;
  const bool rows = plane.groups == Groups::kRow;
  switch (plane.code) {
    case CodeKind::kUint2: return rows ? open_rows<2> : open_columns2;
    case CodeKind::kUint4:
    case CodeKind::kSint4: return rows ? open_rows<4> : open_columns4;
    case CodeKind::kUint8: return rows ? open_rows8<false> : nullptr;
    default: return rows ? open_rows8<true> : nullptr;
  }
}

}  // namespace kvlane::linear
