// What the AVX-512 kernels of linear codes share: strips of 32 channels. For such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "quant/linear_kernels.h"

namespace kvlane::linear {

inline constexpr int kLanes = 32;
// Groups of a plane that kernels have room for; the scalar code opens planes of more.
inline constexpr int kEntriesMax = 512;

// The first `count` lanes, all where there are more.
static inline __mmask32 lanes(int count) { return count >= kLanes ? ~0U : (1U << count) - 1U; }
// 32 channels of the page, or the rest of a row. Everything by value, so that stores cannot change
// it in the compiler's eyes; always inline, so that no tier has the copy of another.
struct Strip {
  const std::uint16_t* words;
  std::uint16_t* rows;
  std::ptrdiff_t d;
  __mmask32 mask;

  [[gnu::always_inline]] __m512i word(int i) const {
    return _mm512_maskz_loadu_epi16(mask, words + i * d);
  }
  [[gnu::always_inline]] void store(int token, __m512i values) const {
    _mm512_mask_storeu_epi16(rows + token * d, mask, values);
  }
};

static inline Strip strip_of(const OpenJob& job, int channel, int end) {
  return {reinterpret_cast<const std::uint16_t*>(job.codes) + channel, job.rows + channel,
          job.head_dim, lanes(end - channel)};
}

}  // namespace kvlane::linear
