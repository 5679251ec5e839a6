// What the AVX-512 kernels of codes for attention share: numbers of the metadata. For such files
// only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "quant/hack_layout.h"

namespace kvlane::hack {

inline constexpr int kLanes = 16;

// Whether partitions are whole vectors of channels, or whole halves of a page.
static inline bool has_kernel(const Plane& plane) {
  if (plane.axis == Axis::kToken) return plane.partition % kLanes == 0;
  return plane.axis == Axis::kBoth || plane.partition % (kBlockTokens / 2) == 0;
}

// 16 numbers of a type.
static inline __m512 to_floats(Meta meta, __m256i halves) {
  if (meta == Meta::kFp16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline __m512 load_numbers(Meta meta, const std::byte* from) {
  return to_floats(meta, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// m and s of 16 tokens or channels.
struct Affine {
  __m512 m, s;
};
static inline Affine load_affine(Meta meta, const std::byte* entries) {
  const __m512i pairs = _mm512_loadu_si512(entries);
  if (meta == Meta::kFp16) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)),
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))};
  }
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(pairs, high))};
}

}  // namespace kvlane::hack
