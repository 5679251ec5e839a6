// What the AVX2 kernels that open linear codes share: strips of 32 channels, as two vectors. For
// such files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "quant/linear_kernels.h"

namespace kvlane::linear::avx2 {

inline constexpr int kLanes = 32;
// Groups of a plane that kernels have room for; the scalar code takes planes of more.
inline constexpr int kEntriesMax = 512;
// Rows of words in a page of codes of 8 bits.
inline constexpr int kWordRowsMax = 32;

// 16-bit numbers of 32 channels: 0-15 and 16-31.
struct Pair {
  __m256i low, high;
};

static inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
static inline void store(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
// A half, twice.
static inline __m256i load_twice(const void* from) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(from)));
}

// 32 channels of the page. Everything by value, so that stores cannot change it in the compiler's
// eyes.
struct Strip {
  const std::uint16_t* words;
  std::uint16_t* rows;
  std::ptrdiff_t d;

  Pair word(int i) const { return {load(words + i * d), load(words + i * d + 16)}; }
  void store(int token, Pair values) const {
    avx2::store(rows + token * d, values.low);
    avx2::store(rows + token * d + 16, values.high);
  }
};

// There are no loads and stores of some 16-bit lanes: fewer than 32 channels are opened in here.
// Other lanes have all bits set: no code of them is a subnormal number, which would cost time.
struct Stage {
  alignas(32) std::uint16_t words[kWordRowsMax * kLanes];
  alignas(32) std::uint16_t rows[kBlockTokens * kLanes];
};

// Channels `channel` ... `end` - 1, at most 32 of them, of a page of kBits: where they are, or
// staged.
template <int kBits>
static inline Strip strip_of(const OpenJob& job, int channel, int end, Stage& stage) {
  const auto* const words = reinterpret_cast<const std::uint16_t*>(job.codes) + channel;
  if (end - channel >= kLanes) return {words, job.rows + channel, job.head_dim};
  constexpr int kRows = 4 * kBits;
  for (int i = 0; i < kRows * kLanes; i += 16) store(stage.words + i, _mm256_set1_epi32(-1));
  for (int i = 0; i < kRows; ++i) {
    for (int lane = 0; lane < end - channel; ++lane) {
      stage.words[kLanes * i + lane] = words[std::ptrdiff_t{i} * job.head_dim + lane];
    }
  }
  return {stage.words, stage.rows, kLanes};
}

// Afterwards: staged rows go where they belong.
static inline void put_back(const OpenJob& job, int channel, int end, const Stage& stage) {
  if (end - channel >= kLanes) return;
  for (int token = 0; token < kBlockTokens; ++token) {
    std::uint16_t* const row = job.rows + std::ptrdiff_t{token} * job.head_dim + channel;
    for (int lane = 0; lane < end - channel; ++lane) row[lane] = stage.rows[kLanes * token + lane];
  }
}

// The low bytes of 32 words, as two halves that interleave() takes back; the high ones.
static inline __m256i low_bytes(Pair words) {
  const __m256i low = _mm256_set1_epi16(0xff);
  return _mm256_packus_epi16(_mm256_and_si256(words.low, low), _mm256_and_si256(words.high, low));
}
static inline __m256i high_bytes(Pair words) {
  return _mm256_packus_epi16(_mm256_srli_epi16(words.low, 8), _mm256_srli_epi16(words.high, 8));
}
static inline Pair interleave(__m256i low, __m256i high) {
  return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
}

// Codes of kBits from a place in their bytes to bits 0-3, where pshufb looks them up in 16 bytes.
// With kBits = 2 there is something in bits 2 and 3: tables repeat.
template <int kShift>
static inline __m256i index_of(__m256i bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, kShift), _mm256_set1_epi8(15));
}

// Null for a plane it has no kernel for.
OpenKernel open_float_kernel(const Plane& plane);

}  // namespace kvlane::linear::avx2
