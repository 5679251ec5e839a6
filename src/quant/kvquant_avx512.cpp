// Pages of `kvquant` with AVX-512: 16 channels of a row are one vector.
//
// A word of code bits is a mask register, so a group's codes are put together by `bits` masked
// operations and looked up by one permutation; with a product and a sum that is some 7 operations
// for 16 values, then outliers one by one, then (K) the rotation: 4 products and 2 sums for 32
// values, which needs the whole row, kept in the nearest cache. A page of head_dim 128 at 4 bits is
// 16 KB of codes read and 32 KB of BF16 written: arithmetic and memory of the result are the limit,
// not the codes. Products and sums stay apart, as in the scalar code, so bits agree.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/kvquant_slab.h"

namespace kvlane::kvquant {
namespace {

// The float of BF16 bits, without a function that others share.
inline float widen(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

// Rounds half to even, as to_bf16() does; there are no NaN here. (vcvtneps2bf16 would take
// subnormal values for zeros.)
inline __m256i narrow(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, half), 16));
}

inline __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << count) - 1);
}

// The codes of a group: bit k of lane i is bit i of word k.
template <int kBits>
inline __m512i read_codes(const std::byte* words) {
  std::uint16_t word[kBits];
  __builtin_memcpy(word, words, sizeof(word));
  __m512i codes = _mm512_maskz_set1_epi32(word[0], 1);
  for (int bit = 1; bit < kBits; ++bit) {
    const __m512i value = _mm512_set1_epi32(1 << bit);
    codes = _mm512_mask_or_epi32(codes, word[bit], codes, value);
  }
  return codes;
}

// Where reading outliers stands.
struct Cursor {
  std::size_t at = 0;
  std::uint32_t first = 0;  // place of the row's first value
};

// As in the scalar code, case by case.
inline void apply_outliers(const Plane& plane, Cursor& cursor, float* row) {
  const std::uint32_t end = cursor.first + static_cast<std::uint32_t>(plane.head_dim);
  for (; cursor.at < plane.outlier_count; ++cursor.at) {
    std::uint16_t entry[2];
    __builtin_memcpy(entry, plane.outliers + kOutlierBytes * cursor.at, kOutlierBytes);
    if (entry[0] >= end) break;
    if (entry[0] >= cursor.first && (entry[1] & 0x7F80) != 0x7F80) {
      row[entry[0] - cursor.first] = widen(entry[1]);
    }
  }
  cursor.first = end;
}

// row: aligned to 64.
inline void store_row(const float* row, int width, std::uint16_t* out) {
  for (int i = 0; i < width; i += kGroup) {
    _mm256_mask_storeu_epi16(out + i, first_lanes(width - i), narrow(_mm512_load_ps(row + i)));
  }
}

template <int kBits>
void open_keys(const Plane& plane, const float* middle, const float* reach,
               const RopeAngles* angles) {
  const __m512 values = _mm512_loadu_ps(plane.values);
  const int groups = groups_of(plane.head_dim);
  const int half = plane.head_dim / 2;
  const std::byte* codes = plane.codes;
  alignas(64) float row[kHeadDimMax];
  Cursor cursor;
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int group = 0; group < groups; ++group, codes += 2 * kBits) {
      const __m512 value = _mm512_permutexvar_ps(read_codes<kBits>(codes), values);
      const __m512 scaled = _mm512_mul_ps(value, _mm512_loadu_ps(reach + kGroup * group));
      _mm512_store_ps(row + kGroup * group,
                      _mm512_add_ps(scaled, _mm512_loadu_ps(middle + kGroup * group)));
    }
    apply_outliers(plane, cursor, row);
    std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
    if (angles == nullptr) {
      store_row(row, plane.head_dim, out);
      continue;
    }
    for (int i = 0; i < half; i += kGroup) {
      const __mmask16 lanes = first_lanes(half - i);
      const __m512 cos = _mm512_maskz_loadu_ps(lanes, angles[token].cos + i);
      const __m512 sin = _mm512_maskz_loadu_ps(lanes, angles[token].sin + i);
      const __m512 low = _mm512_maskz_loadu_ps(lanes, row + i);
      const __m512 high = _mm512_maskz_loadu_ps(lanes, row + half + i);
      const __m512 new_low = _mm512_sub_ps(_mm512_mul_ps(low, cos), _mm512_mul_ps(high, sin));
      const __m512 new_high = _mm512_add_ps(_mm512_mul_ps(high, cos), _mm512_mul_ps(low, sin));
      _mm256_mask_storeu_epi16(out + i, lanes, narrow(new_low));
      _mm256_mask_storeu_epi16(out + half + i, lanes, narrow(new_high));
    }
  }
}

template <int kBits>
void open_values(const Plane& plane, const float* middle, const float* reach) {
  const __m512 values = _mm512_loadu_ps(plane.values);
  const int groups = groups_of(plane.head_dim);
  const std::byte* codes = plane.codes;
  alignas(64) float row[kHeadDimMax];
  Cursor cursor;
  for (int token = 0; token < kBlockTokens; ++token) {
    // What a token's codes stand for, once for all of its channels.
    const __m512 levels = _mm512_add_ps(_mm512_mul_ps(values, _mm512_set1_ps(reach[token])),
                                        _mm512_set1_ps(middle[token]));
    for (int group = 0; group < groups; ++group, codes += 2 * kBits) {
      _mm512_store_ps(row + kGroup * group,
                      _mm512_permutexvar_ps(read_codes<kBits>(codes), levels));
    }
    apply_outliers(plane, cursor, row);
    store_row(row, plane.head_dim, plane.rows + std::size_t(token) * plane.head_dim);
  }
}

}  // namespace

void open_keys_avx512(const Plane& plane, const float* middle, const float* reach,
                      const RopeAngles* angles) {
  switch (plane.bits) {
    case 2: return open_keys<2>(plane, middle, reach, angles);
    case 3: return open_keys<3>(plane, middle, reach, angles);
    default: return open_keys<4>(plane, middle, reach, angles);
  }
}

void open_values_avx512(const Plane& plane, const float* middle, const float* reach) {
  switch (plane.bits) {
    case 2: return open_values<2>(plane, middle, reach);
    case 3: return open_values<3>(plane, middle, reach);
    default: return open_values<4>(plane, middle, reach);
  }
}

}  // namespace kvlane::kvquant
