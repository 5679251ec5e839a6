// Pages of codes to rows of floats with AVX2: the way of hack_open_avx512.cpp, 16 channels as two
// vectors.
//
// K: lanes are channels of a token. The words of 4 tokens, one copy for each of two registers of 4
// channels, are shifted and masked at once; then each token's bytes go to their lanes in one step.
// V: lanes are channels of a word, a shift and a mask for each of its tokens.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/hack_avx2.h"
#include "quant/hack_kernels.h"

namespace kvlane::hack {
namespace {

using avx2::Affine;
using avx2::kLanes;
using avx2::load_affine;
using avx2::load_numbers;

constexpr int kVectors = 2;  // at a time: a line of memory

template <int kBits, bool kBoth>
inline __m256 value_of(__m256i code, __m256 m, __m256 s) {
  // What codes are counted from.
  const __m256 origin = _mm256_set1_ps(kBoth ? static_cast<float>((1 << kBits) - 1) / 2 : 0.0F);
  __m256 x = _mm256_cvtepi32_ps(code);
  if constexpr (kBoth) x = _mm256_sub_ps(x, origin);
  return _mm256_fmadd_ps(s, x, m);
}

// --- K ------------------------------------------------------------------------------------------

// Codes of 8 channels of 4 tokens: byte k of lane 4 r + i is channel 4 r + k of token i.
template <int kBits>
inline __m256i key_codes(const std::byte* words, int token, int channel) {
  const auto four = [&](int j) {
    const int word = (channel * kBits / 32 + j) * kBlockTokens + token;
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4 * word));
  };
  if constexpr (kBits == 8) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(1), 1);
  } else {
    const int shift = channel * kBits % 32 / 4;  // of the first register
    const __m256i shifts = _mm256_add_epi32(
        _mm256_setr_epi32(0, 0, 0, 0, kBits, kBits, kBits, kBits), _mm256_set1_epi32(shift));
    const __m256i all = _mm256_srlv_epi32(_mm256_broadcastsi128_si256(four(0)), shifts);
    return _mm256_and_si256(all, _mm256_set1_epi8((1 << kBits) - 1));
  }
}

// Bytes 4 i ... 4 i + 3 of each half of a vector, each to a lane of its own.
inline __m256i bytes_of_token(__m256i codes, int i) {
  const int none = static_cast<int>(0xffffff00);
  const __m256i first =
      _mm256_broadcastsi128_si256(_mm_setr_epi32(none, none + 1, none + 2, none + 3));
  return _mm256_shuffle_epi8(codes, _mm256_add_epi32(first, _mm256_set1_epi32(4 * i)));
}

// bases: m of the channels, by both; else m is of tokens.
template <int kBits, bool kBoth>
inline void open_keys(const OpenJob& job, int channel, const __m256 (&bases)[kVectors],
                      const float* m, const float* s) {
  float* row = job.rows + channel;
  for (int token = 0; token < kBlockTokens; token += 4) {
    const __m256i codes[kVectors] = {key_codes<kBits>(job.codes, token, channel),
                                     key_codes<kBits>(job.codes, token, channel + kLanes)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, row += job.head_dim) {
      const __m256 scale = _mm256_set1_ps(s[token + i]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const __m256 least = kBoth ? bases[v] : _mm256_set1_ps(m[token + i]);
        _mm256_store_ps(row + kLanes * v,
                        value_of<kBits, kBoth>(bytes_of_token(codes[v], i), least, scale));
      }
    }
  }
}

// Of all tokens.
struct TokenNumbers {
  alignas(32) float m[kBlockTokens];
  alignas(32) float s[kBlockTokens];
};

void read_scales(const OpenJob& job, TokenNumbers& numbers) {
  const std::byte* const scales = job.metadata + scales_offset(job.head_dim);
  for (int token = 0; token < kBlockTokens; token += kLanes) {
    _mm256_store_ps(numbers.s + token, load_numbers(job.plane.meta, scales + 2 * token));
  }
}

template <int kBits>
void open_keys_by_both(const OpenJob& job) {
  TokenNumbers numbers;
  read_scales(job, numbers);
  for (int channel = 0; channel < job.head_dim; channel += kVectors * kLanes) {
    const std::byte* const from = job.metadata + 2 * channel;
    const __m256 bases[kVectors] = {load_numbers(job.plane.meta, from),
                                    load_numbers(job.plane.meta, from + 2 * kLanes)};
    open_keys<kBits, true>(job, channel, bases, nullptr, numbers.s);
  }
}

template <int kBits>
void open_keys_by_token(const OpenJob& job) {
  const int d = job.head_dim;
  const __m256 none[kVectors] = {};
  TokenNumbers numbers;
  const std::byte* entries = job.metadata;
  for (int first = 0; first < d; first += job.plane.partition) {
    for (int token = 0; token < kBlockTokens; token += kLanes) {
      const Affine affine = load_affine(job.plane.meta, entries);
      _mm256_store_ps(numbers.m + token, affine.m);
      _mm256_store_ps(numbers.s + token, affine.s);
      entries += kEntryBytes * kLanes;
    }
    const int end = d - first < job.plane.partition ? d : first + job.plane.partition;
    for (int channel = first; channel < end; channel += kVectors * kLanes) {
      open_keys<kBits, false>(job, channel, none, numbers.m, numbers.s);
    }
  }
}

// --- V ------------------------------------------------------------------------------------------

// The tokens of word (i, c) of 16 channels. affine_of(token, v) gives m and s of vector v.
template <int kBits, bool kBoth, class AffineOf>
inline void open_word(const OpenJob& job, int i, int c, int channel, const AffineOf& affine_of) {
  constexpr int kRegisters = 8 / kBits;
  const int d = job.head_dim;
  const std::byte* const words = job.codes + 4 * (std::size_t(kValueClasses * i + c) * d + channel);
  const __m256i word[kVectors] = {avx2::load(words), avx2::load(words + 4 * kLanes)};
#pragma GCC unroll 4
  for (int e = 0; e < kRegisters; ++e) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const int token = value_token(kRegisters * i + e, c, k);
      float* const row = job.rows + std::size_t(token) * d + channel;
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const __m256i code = _mm256_and_si256(_mm256_srli_epi32(word[v], 8 * k + kBits * e),
                                              _mm256_set1_epi32((1 << kBits) - 1));
        const Affine affine = affine_of(token, v);
        _mm256_store_ps(row + kLanes * v, value_of<kBits, kBoth>(code, affine.m, affine.s));
      }
    }
  }
}

template <int kBits, bool kBoth, class AffineOf>
inline void open_words(const OpenJob& job, int channel, const AffineOf& affine_of) {
#pragma GCC unroll 4
  for (int i = 0; i < kValueRegisters * kBits / 8; ++i) {
    // Else what tokens have in common with the next channels would be kept, in too few registers.
#pragma GCC unroll 1
    for (int c = 0; c < kValueClasses; ++c) {
      open_word<kBits, kBoth>(job, i, c, channel, affine_of);
    }
  }
}

template <int kBits>
void open_values_by_both(const OpenJob& job) {
  TokenNumbers numbers;
  read_scales(job, numbers);
  for (int channel = 0; channel < job.head_dim; channel += kVectors * kLanes) {
    const std::byte* const from = job.metadata + 2 * channel;
    const __m256 bases[kVectors] = {load_numbers(job.plane.meta, from),
                                    load_numbers(job.plane.meta, from + 2 * kLanes)};
    open_words<kBits, true>(job, channel, [&](int token, int v) {
      return Affine{bases[v], _mm256_set1_ps(numbers.s[token])};
    });
  }
}

// Partitions of 64 or of 32 tokens: of one, or of the lower and the upper half of registers.
template <int kBits>
void open_values_by_channel(const OpenJob& job) {
  const std::size_t row_bytes = kEntryBytes * job.head_dim;
  const bool halves = job.plane.partition < kBlockTokens;
  for (int channel = 0; channel < job.head_dim; channel += kVectors * kLanes) {
    Affine of[2][kVectors];  // of both halves
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* const entries = job.metadata + kEntryBytes * (channel + kLanes * v);
      of[0][v] = load_affine(job.plane.meta, entries);
      of[1][v] = halves ? load_affine(job.plane.meta, entries + row_bytes) : of[0][v];
    }
    open_words<kBits, false>(
        job, channel, [&](int token, int v) { return of[token < kBlockTokens / 2 ? 0 : 1][v]; });
  }
}

template <int kBits>
OpenKernel kernel_of(Axis axis, Part part) {
  const bool keys = part == Part::kKeys;
  switch (axis) {
    case Axis::kToken: return keys ? open_keys_by_token<kBits> : nullptr;
    case Axis::kChannel: return keys ? nullptr : open_values_by_channel<kBits>;
    default: return keys ? open_keys_by_both<kBits> : open_values_by_both<kBits>;
  }
}

}  // namespace

OpenKernel open_kernel_avx2(const Plane& plane, Part part) {
  if (!avx2::has_kernel(plane)) return nullptr;
  switch (plane.bits) {
    case 2: return kernel_of<2>(plane.axis, part);
    case 4: return kernel_of<4>(plane.axis, part);
    default: return kernel_of<8>(plane.axis, part);
  }
}

}  // namespace kvlane::hack
