// Rows to floats and back with AVX2: a row at a time, which is mixed while it is near. About 15
// operations for 16 values beside those of mixing.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_rows.h"

#include <cstddef>

#include "format/shape.h"
#include "quant/hack_avx2.h"
#include "quant/hadamard.h"

namespace kvlane::hack {
namespace {

using avx2::kLanes;

// Magnitudes are compared as integers, so that NaN is above all.
float widen(const std::uint16_t* rows, int head_dim, bool mix, float* values) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int token = 0; token < kBlockTokens; ++token, rows += head_dim, values += head_dim) {
    for (int i = 0; i < head_dim; i += kLanes) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i));
      _mm256_store_ps(values + i, avx2::to_floats(Meta::kBf16, halves));
    }
    if (mix) mix_channels_avx2(values, 1, head_dim);
    for (int i = 0; i < head_dim; i += kLanes) {
      const __m256i bits = avx2::load(values + i);
      most = _mm256_max_epi32(most, _mm256_and_si256(bits, magnitude));
    }
  }
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, _mm256_castsi256_ps(most));
  std::int32_t greatest = 0;
  for (const float& lane : lanes) {
    std::int32_t bits;
    __builtin_memcpy(&bits, &lane, sizeof(bits));
    if (bits > greatest) greatest = bits;
  }
  float result;
  __builtin_memcpy(&result, &greatest, sizeof(result));
  return result;
}

// As to_bf16(), with one NaN, in the lower halves of lanes.
inline __m256i to_bf16_lanes(__m256 x) {
  const __m256i rounded = avx2::to_bf16_lanes(x);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(kNanBf16), nan);
}

void narrow(float* values, int head_dim, bool mix, std::uint16_t* rows) {
  for (int token = 0; token < kBlockTokens; ++token, rows += head_dim, values += head_dim) {
    if (mix) mix_channels_avx2(values, 1, head_dim);
    for (int i = 0; i < head_dim; i += 2 * kLanes) {
      const __m256i packed =
          _mm256_packus_epi32(to_bf16_lanes(_mm256_load_ps(values + i)),
                              to_bf16_lanes(_mm256_load_ps(values + i + kLanes)));
      avx2::store(rows + i, _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
    }
  }
}

}  // namespace

RowKernels row_kernels_avx2() { return {widen, narrow}; }

}  // namespace kvlane::hack
