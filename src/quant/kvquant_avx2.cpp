// Pages of `kvquant` with AVX2.
//
// Bits of codes become bytes, 32 channels at once: 4 operations for each bit. What a token's codes
// of V stand for is known once for the token, in BF16: pshufb looks up its low and its high bytes,
// and outliers are written over it as they are, so that no float is made of a channel. At 4 bits
// that is 21 operations for 32 values, and 30 a token. K has a scale for each channel and rotates:
// codes are looked up as floats, 8 at once, then come a product and a sum, outliers one by one, and
// the rotation with its rounding, some 19 operations for 8 values. (With AVX-512 a word of bits
// is a mask as it is: kvquant_avx512.cpp.) Products and sums stay apart, as in the scalar code, so
// bits agree.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/kvquant_slab.h"

namespace kvlane::kvquant {
namespace {

constexpr int kPair = 2 * kGroup;  // channels of a vector of bytes

inline void store(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

inline std::uint32_t load4(const std::byte* from) {
  std::uint32_t word;
  __builtin_memcpy(&word, from, sizeof(word));
  return word;
}

// The float of BF16 bits, without a function that others share.
inline float widen(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

// Round half to even, as to_bf16() does; there are no NaN here. The result is in the high halves.
inline __m256i rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
}
inline void store_narrow(__m256 x, std::uint16_t* to) {
  const __m256i words = _mm256_srli_epi32(rounded(x), 16);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline std::uint16_t narrow(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// --- codes --------------------------------------------------------------------------------------

// The words of a group, and of two; nothing else is read.
template <int kBits>
inline __m128i load_group(const std::byte* words) {
  const __m128i first = _mm_cvtsi32_si128(static_cast<int>(load4(words)));
  if constexpr (kBits == 2) return first;
  if constexpr (kBits == 4) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words));
  std::uint16_t last;
  __builtin_memcpy(&last, words + 4, sizeof(last));
  return _mm_insert_epi16(first, last, 2);
}
template <int kBits>
inline __m128i load_pair(const std::byte* words) {
  if constexpr (kBits == 4) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words));
  if constexpr (kBits == 2) return first;
  return _mm_insert_epi32(first, static_cast<int>(load4(words + 8)), 2);
}

// The codes of two groups, a byte each: the lower half of the vector has the first group.
template <int kBits>
inline __m256i spread(__m128i words) {
  const __m256i both = _mm256_broadcastsi128_si256(words);
  // Bytes 0 and 1 of a group's first word, for channels 0-7 and 8-15; the second group is behind.
  const __m256i word = _mm256_setr_epi8(
      0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2 * kBits, 2 * kBits, 2 * kBits, 2 * kBits,
      2 * kBits, 2 * kBits, 2 * kBits, 2 * kBits, 2 * kBits + 1, 2 * kBits + 1, 2 * kBits + 1,
      2 * kBits + 1, 2 * kBits + 1, 2 * kBits + 1, 2 * kBits + 1, 2 * kBits + 1);
  const __m256i lane = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  __m256i codes = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int bit = 0; bit < kBits; ++bit) {
    const __m256i places = _mm256_add_epi8(word, _mm256_set1_epi8(static_cast<char>(2 * bit)));
    const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(both, places), lane);
    const __m256i set = _mm256_cmpeq_epi8(bits, lane);
    codes = _mm256_or_si256(codes,
                            _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << bit))));
  }
  return codes;
}

// Of a row; its codes lie behind each other. body(first channel, codes) for each two groups.
template <int kBits, class Body>
inline const std::byte* for_pairs(const std::byte* codes, int groups, const Body& body) {
  int group = 0;
  for (; group + 2 <= groups; group += 2, codes += 4 * kBits) {
    body(kGroup * group, spread<kBits>(load_pair<kBits>(codes)));
  }
  if (group < groups) {
    body(kGroup * group, spread<kBits>(load_group<kBits>(codes)));
    codes += 2 * kBits;
  }
  return codes;
}

// --- outliers -----------------------------------------------------------------------------------

// Where reading outliers stands.
struct Cursor {
  std::size_t at = 0;
  std::uint32_t first = 0;  // place of the row's first value
};

// As in the scalar code, case by case. put(channel, BF16).
template <class Put>
inline void apply_outliers(const Plane& plane, Cursor& cursor, const Put& put) {
  const std::uint32_t end = cursor.first + static_cast<std::uint32_t>(plane.head_dim);
  for (; cursor.at < plane.outlier_count; ++cursor.at) {
    std::uint16_t entry[2];
    __builtin_memcpy(entry, plane.outliers + kOutlierBytes * cursor.at, kOutlierBytes);
    if (entry[0] >= end) break;
    if (entry[0] >= cursor.first && (entry[1] & 0x7F80) != 0x7F80) {
      put(entry[0] - cursor.first, entry[1]);
    }
  }
  cursor.first = end;
}

// --- K ------------------------------------------------------------------------------------------

// The floats of 8 codes, each in a byte.
template <int kBits>
inline __m256 look_up(const std::uint8_t* codes, __m256 low, __m256 high) {
  const __m256i index =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  // It takes the lowest three bits.
  const __m256 of_low = _mm256_permutevar8x32_ps(low, index);
  if constexpr (kBits < 4) return of_low;
  return _mm256_blendv_ps(of_low, _mm256_permutevar8x32_ps(high, index),
                          _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

void store_row(const float* row, int width, std::uint16_t* out) {
  int i = 0;
  for (; i + 8 <= width; i += 8) store_narrow(_mm256_load_ps(row + i), out + i);
  for (; i < width; ++i) out[i] = narrow(row[i]);
}

// As rope() does it, then to BF16.
void store_rotated(const float* row, const RopeAngles& angles, int half, std::uint16_t* out) {
  int i = 0;
  for (; i + 8 <= half; i += 8) {
    const __m256 cos = _mm256_loadu_ps(angles.cos + i);
    const __m256 sin = _mm256_loadu_ps(angles.sin + i);
    const __m256 low = _mm256_loadu_ps(row + i);
    const __m256 high = _mm256_loadu_ps(row + half + i);
    store_narrow(_mm256_sub_ps(_mm256_mul_ps(low, cos), _mm256_mul_ps(high, sin)), out + i);
    store_narrow(_mm256_add_ps(_mm256_mul_ps(high, cos), _mm256_mul_ps(low, sin)), out + half + i);
  }
  for (; i < half; ++i) {
    const float low = row[i];
    const float high = row[half + i];
    out[i] = narrow(low * angles.cos[i] - high * angles.sin[i]);
    out[half + i] = narrow(high * angles.cos[i] + low * angles.sin[i]);
  }
}

template <int kBits>
void open_keys(const Plane& plane, const float* middle, const float* reach,
               const RopeAngles* angles) {
  const __m256 low = _mm256_loadu_ps(plane.values);
  const __m256 high = _mm256_loadu_ps(plane.values + 8);
  const int groups = groups_of(plane.head_dim);
  const std::byte* words = plane.codes;
  alignas(32) std::uint8_t codes[kHeadDimMax + kPair];
  alignas(32) float row[kHeadDimMax];
  Cursor cursor;
  for (int token = 0; token < kBlockTokens; ++token) {
    words = for_pairs<kBits>(words, groups,
                             [&](int channel, __m256i pair) { store(codes + channel, pair); });
    for (int i = 0; i < kGroup * groups; i += 8) {
      const __m256 scaled =
          _mm256_mul_ps(look_up<kBits>(codes + i, low, high), _mm256_loadu_ps(reach + i));
      _mm256_store_ps(row + i, _mm256_add_ps(scaled, _mm256_loadu_ps(middle + i)));
    }
    apply_outliers(plane, cursor,
                   [&](std::uint32_t channel, std::uint16_t bits) { row[channel] = widen(bits); });
    std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
    if (angles == nullptr) {
      store_row(row, plane.head_dim, out);
    } else {
      store_rotated(row, angles[token], plane.head_dim / 2, out);
    }
  }
}

// --- V ------------------------------------------------------------------------------------------

// 16 BF16 values: their low and their high bytes, each in both halves.
struct Table {
  __m256i low, high;
};

inline Table table_of(__m256 first, __m256 second) {
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(rounded(first), 16),
                                                   _mm256_srli_epi32(rounded(second), 16)),
                               _MM_SHUFFLE(3, 1, 2, 0));
  const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xFF)),
                                            _mm256_srli_epi16(words, 8));
  return {_mm256_permute4x64_epi64(bytes, _MM_SHUFFLE(2, 0, 2, 0)),
          _mm256_permute4x64_epi64(bytes, _MM_SHUFFLE(3, 1, 3, 1))};
}

template <int kBits>
void open_values(const Plane& plane, const float* middle, const float* reach) {
  const __m256 first = _mm256_loadu_ps(plane.values);
  const __m256 second = _mm256_loadu_ps(plane.values + 8);
  const int groups = groups_of(plane.head_dim);
  const bool whole = plane.head_dim % kPair == 0;
  const std::byte* words = plane.codes;
  alignas(32) std::uint16_t staged[kHeadDimMax + kPair];
  Cursor cursor;
  for (int token = 0; token < kBlockTokens; ++token) {
    const __m256 scale = _mm256_set1_ps(reach[token]);
    const __m256 least = _mm256_set1_ps(middle[token]);
    const Table table = table_of(_mm256_add_ps(_mm256_mul_ps(first, scale), least),
                                 _mm256_add_ps(_mm256_mul_ps(second, scale), least));
    std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
    std::uint16_t* const row = whole ? out : staged;
    words = for_pairs<kBits>(words, groups, [&](int channel, __m256i codes) {
      const __m256i low = _mm256_shuffle_epi8(table.low, codes);
      const __m256i high = _mm256_shuffle_epi8(table.high, codes);
      // Channels 0-7 and 16-23, 8-15 and 24-31.
      const __m256i even = _mm256_unpacklo_epi8(low, high);
      const __m256i odd = _mm256_unpackhi_epi8(low, high);
      store(row + channel, _mm256_permute2x128_si256(even, odd, 0x20));
      store(row + channel + kGroup, _mm256_permute2x128_si256(even, odd, 0x31));
    });
    apply_outliers(plane, cursor,
                   [&](std::uint32_t channel, std::uint16_t bits) { row[channel] = bits; });
    if (!whole) __builtin_memcpy(out, staged, sizeof(*out) * std::size_t(plane.head_dim));
  }
}

}  // namespace

void open_keys_avx2(const Plane& plane, const float* middle, const float* reach,
                    const RopeAngles* angles) {
  switch (plane.bits) {
    case 2: return open_keys<2>(plane, middle, reach, angles);
    case 3: return open_keys<3>(plane, middle, reach, angles);
    default: return open_keys<4>(plane, middle, reach, angles);
  }
}

void open_values_avx2(const Plane& plane, const float* middle, const float* reach) {
  switch (plane.bits) {
    case 2: return open_values<2>(plane, middle, reach);
    case 3: return open_values<3>(plane, middle, reach);
    default: return open_values<4>(plane, middle, reach);
  }
}

}  // namespace kvlane::kvquant
