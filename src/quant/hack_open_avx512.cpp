// Pages of codes to rows of floats with AVX-512.
//
// K: lanes are channels of a token. The words of 4 tokens, one copy for each register of 4
// channels, are shifted and masked at once; then each token's bytes go to their lanes in one step.
// V: lanes are channels of a word, a shift and a mask for each of its tokens. With the conversion
// and the multiply-add 3 to 5 operations for 16 values, besides their store.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/hack_avx512.h"
#include "quant/hack_kernels.h"

namespace kvlane::hack {
namespace {

// What codes are counted from.
template <int kBits, bool kBoth>
inline __m512 origin() {
  return _mm512_set1_ps(kBoth ? static_cast<float>((1 << kBits) - 1) / 2 : 0.0F);
}

template <int kBits, bool kBoth>
inline __m512 value_of(__m512i code, __m512 m, __m512 s) {
  __m512 x = _mm512_cvtepi32_ps(code);
  if constexpr (kBoth) x = _mm512_sub_ps(x, origin<kBits, kBoth>());
  return _mm512_fmadd_ps(s, x, m);
}

// --- K ------------------------------------------------------------------------------------------

// Codes of 16 channels of 4 tokens: byte k of lane 4 r + i is channel 4 r + k of token i.
template <int kBits>
inline __m512i key_codes(const std::byte* words, int token, int channel) {
  const auto four = [&](int j) {
    const int word = (channel * kBits / 32 + j) * kBlockTokens + token;
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4 * word));
  };
  if constexpr (kBits == 2) {
    const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i all = _mm512_srlv_epi32(_mm512_broadcast_i32x4(four(0)), shifts);
    return _mm512_and_si512(all, _mm512_set1_epi8(3));
  } else if constexpr (kBits == 4) {
    const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
    const __m512i pairs =
        _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(four(0)), 0xff00, four(1));
    return _mm512_and_si512(_mm512_srlv_epi32(pairs, shifts), _mm512_set1_epi8(15));
  } else {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(four(2)), four(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
}

// Bytes 4 i ... 4 i + 3 of each quarter of a vector, each to a lane of its own.
inline __m512i bytes_of_token(__m512i codes, int i) {
  const int none = static_cast<int>(0xffffff00);
  const __m512i first = _mm512_broadcast_i32x4(_mm_setr_epi32(none, none + 1, none + 2, none + 3));
  return _mm512_shuffle_epi8(codes, _mm512_add_epi32(first, _mm512_set1_epi32(4 * i)));
}

template <int kBits, bool kBoth>
inline void open_keys(const OpenJob& job, int channel, __m512 base, const float* m,
                      const float* s) {
  float* row = job.rows + channel;
  for (int token = 0; token < kBlockTokens; token += 4) {
    const __m512i codes = key_codes<kBits>(job.codes, token, channel);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, row += job.head_dim) {
      const __m512 scale = _mm512_set1_ps(s[token + i]);
      const __m512 least = kBoth ? base : _mm512_set1_ps(m[token + i]);
      _mm512_store_ps(row, value_of<kBits, kBoth>(bytes_of_token(codes, i), least, scale));
    }
  }
}

// Of all tokens.
struct TokenNumbers {
  alignas(64) float m[kBlockTokens];
  alignas(64) float s[kBlockTokens];
};

void read_scales(const OpenJob& job, TokenNumbers& numbers) {
  const std::byte* const scales = job.metadata + scales_offset(job.head_dim);
  for (int token = 0; token < kBlockTokens; token += kLanes) {
    _mm512_store_ps(numbers.s + token, load_numbers(job.plane.meta, scales + 2 * token));
  }
}

template <int kBits>
void open_keys_by_both(const OpenJob& job) {
  TokenNumbers numbers;
  read_scales(job, numbers);
  for (int channel = 0; channel < job.head_dim; channel += kLanes) {
    const __m512 base = load_numbers(job.plane.meta, job.metadata + 2 * channel);
    open_keys<kBits, true>(job, channel, base, nullptr, numbers.s);
  }
}

template <int kBits>
void open_keys_by_token(const OpenJob& job) {
  const int d = job.head_dim;
  TokenNumbers numbers;
  const std::byte* entries = job.metadata;
  for (int first = 0; first < d; first += job.plane.partition) {
    for (int token = 0; token < kBlockTokens; token += kLanes) {
      const Affine affine = load_affine(job.plane.meta, entries);
      _mm512_store_ps(numbers.m + token, affine.m);
      _mm512_store_ps(numbers.s + token, affine.s);
      entries += kEntryBytes * kLanes;
    }
    const int end = d - first < job.plane.partition ? d : first + job.plane.partition;
    for (int channel = first; channel < end; channel += kLanes) {
      open_keys<kBits, false>(job, channel, _mm512_setzero_ps(), numbers.m, numbers.s);
    }
  }
}

// --- V ------------------------------------------------------------------------------------------

// The tokens of word (i, c) of 16 channels. affine(token) gives their m and s.
template <int kBits, bool kBoth, class AffineOf>
inline void open_word(const OpenJob& job, int i, int c, int channel, const AffineOf& affine_of) {
  constexpr int kRegisters = 8 / kBits;
  const int d = job.head_dim;
  const __m512i word =
      _mm512_loadu_si512(job.codes + 4 * (std::size_t(kValueClasses * i + c) * d + channel));
#pragma GCC unroll 4
  for (int e = 0; e < kRegisters; ++e) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const __m512i code = _mm512_and_si512(_mm512_srli_epi32(word, 8 * k + kBits * e),
                                            _mm512_set1_epi32((1 << kBits) - 1));
      const int token = value_token(kRegisters * i + e, c, k);
      const Affine affine = affine_of(token);
      _mm512_store_ps(job.rows + std::size_t(token) * d + channel,
                      value_of<kBits, kBoth>(code, affine.m, affine.s));
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
  for (int channel = 0; channel < job.head_dim; channel += kLanes) {
    const __m512 base = load_numbers(job.plane.meta, job.metadata + 2 * channel);
    open_words<kBits, true>(job, channel, [&](int token) {
      return Affine{base, _mm512_set1_ps(numbers.s[token])};
    });
  }
}

// Partitions of 64 or of 32 tokens: of one, or of the lower and the upper half of registers.
template <int kBits>
void open_values_by_channel(const OpenJob& job) {
  const std::size_t row_bytes = kEntryBytes * job.head_dim;
  const bool halves = job.plane.partition < kBlockTokens;
  for (int channel = 0; channel < job.head_dim; channel += kLanes) {
    const std::byte* const entries = job.metadata + kEntryBytes * channel;
    const Affine low = load_affine(job.plane.meta, entries);
    const Affine high = halves ? load_affine(job.plane.meta, entries + row_bytes) : low;
    open_words<kBits, false>(job, channel,
                             [&](int token) { return token < kBlockTokens / 2 ? low : high; });
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

OpenKernel open_kernel_avx512(const Plane& plane, Part part) {
  if (!has_kernel(plane)) return nullptr;
  switch (plane.bits) {
    case 2: return kernel_of<2>(plane.axis, part);
    case 4: return kernel_of<4>(plane.axis, part);
    default: return kernel_of<8>(plane.axis, part);
  }
}

}  // namespace kvlane::hack
