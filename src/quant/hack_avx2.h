// What the AVX2 kernels of codes for attention share: numbers of the metadata. For such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "quant/hack_layout.h"

namespace kvlane::hack::avx2 {

inline constexpr int kLanes = 8;

// Whether partitions are whole pairs of vectors of channels, or whole halves of a page.
static inline bool has_kernel(const Plane& plane) {
  if (plane.axis == Axis::kToken) return plane.partition % (2 * kLanes) == 0;
  return plane.axis == Axis::kBoth || plane.partition % (kBlockTokens / 2) == 0;
}

static inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
static inline void store(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

// 8 numbers of a type.
static inline __m256 to_floats(Meta meta, __m128i halves) {
  if (meta == Meta::kFp16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline __m256 load_numbers(Meta meta, const std::byte* from) {
  return to_floats(meta, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// m and s of 8 tokens or channels.
struct Affine {
  __m256 m, s;
};
static inline Affine load_affine(Meta meta, const std::byte* entries) {
  const __m256i pairs = load(entries);
  if (meta == Meta::kBf16) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, high))};
  }
  // All m, then all s: in each half of the vector, then in the whole.
  const __m256i apart = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i halves =
      _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pairs, apart), _MM_SHUFFLE(3, 1, 2, 0));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

// The nearest BF16, half to even, in the lower halves of lanes. Of anything but NaN.
static inline __m256i to_bf16_lanes(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
}

}  // namespace kvlane::hack::avx2
