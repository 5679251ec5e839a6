// Mixing channels with AVX-512: a run is held in registers from its load to its store. Its first
// four steps cross lanes, 2 operations a vector each; the others add vectors, 1 each.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include "quant/hadamard_avx512.h"

#include <cstddef>

#include "quant/hadamard.h"

namespace kvlane {
namespace {

template <int kVectors>
void mix_runs(float* run, std::ptrdiff_t values) {
  const __m512 scale = mix_scale<kVectors>();
  for (const float* const end = run + values; run < end; run += 16 * kVectors) {
    __m512 x[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) x[i] = _mm512_loadu_ps(run + 16 * i);
    mix_run(x, scale);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) _mm512_storeu_ps(run + 16 * i, x[i]);
  }
}

}  // namespace

void mix_channels_avx512(float* rows, int count, int head_dim) {
  const std::ptrdiff_t values = std::ptrdiff_t{count} * head_dim;
  switch (head_dim & -head_dim) {
    case 16: return mix_runs<1>(rows, values);
    case 32: return mix_runs<2>(rows, values);
    case 64: return mix_runs<4>(rows, values);
    case 128: return mix_runs<8>(rows, values);
    case 256: return mix_runs<16>(rows, values);
    default: return mix_channels_scalar(rows, count, head_dim);
  }
}

}  // namespace kvlane
