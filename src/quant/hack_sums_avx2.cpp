// Sums of codes with AVX2: bytes times one, added in pairs, and in 16 bits for as long as a
// partition lasts. Lanes are tokens of K, channels of V, as in hack_sums_avx512_bf16.cpp: 2
// operations for the codes of a register of 8 words, 3 at its end.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/hack_avx2.h"
#include "quant/hack_sums.h"

namespace kvlane::hack {
namespace {

using avx2::kLanes;

// A partition has at most as many words as a row of 256 channels or a column of 64 tokens of 8
// bits: pairs of bytes then stay below 2^15.
static_assert(kHeadDimMax / 4 * 2 * 255 < 0x8000);

// Sums of 8 words' codes, each register's apart and where its codes are in words: multiples of
// 2^(kBits r), shifted once in the end.
template <int kBits>
class Sums {
 public:
  // Registers kFirst ... kLast - 1.
  template <int kFirst, int kLast>
  void add(const std::byte* words) {
    const __m256i word = avx2::load(words);
#pragma GCC unroll 4
    for (int r = kFirst; r < kLast; ++r) {
      const int mask = ((1 << kBits) - 1) << (kBits * r);
      const __m256i codes = _mm256_and_si256(word, _mm256_set1_epi8(static_cast<char>(mask)));
      of_[r] = _mm256_add_epi16(of_[r], _mm256_maddubs_epi16(codes, _mm256_set1_epi8(1)));
    }
  }

  __m256i total() const {
    __m256i sum = _mm256_setzero_si256();
    for (int r = 0; r < 8 / kBits; ++r) {
      const __m256i whole = _mm256_madd_epi16(of_[r], _mm256_set1_epi16(1));
      sum = _mm256_add_epi32(sum, _mm256_srai_epi32(whole, kBits * r));
    }
    return sum;
  }

 private:
  __m256i of_[8 / kBits] = {};
};

inline void store(std::size_t bytes, __m256i sum, std::byte* to) {
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  if (bytes == 1) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
  }
}

template <int kBits>
void sum_keys(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums) {
  constexpr int kChannels = 32 / kBits;  // of a word
  const std::size_t bytes = sum_bytes(plane, head_dim);
  for (int first = 0; first < head_dim; first += plane.partition) {
    const int end = head_dim - first < plane.partition ? head_dim : first + plane.partition;
    for (int token = 0; token < kBlockTokens; token += kLanes, sums += bytes * kLanes) {
      Sums<kBits> of_tokens;
      for (int i = first; i < end; i += kChannels) {
        of_tokens.template add<0, 8 / kBits>(codes + 4 * (i / kChannels * kBlockTokens + token));
      }
      store(bytes, of_tokens.total(), sums);
    }
  }
}

// Of one partition: the tokens of registers kFirst ... kLast - 1 of all classes.
template <int kBits, int kFirst, int kLast>
std::byte* sum_part(std::size_t bytes, int head_dim, const std::byte* codes, std::byte* sums) {
  constexpr int kInWord = 8 / kBits;
  constexpr int kEach = kLast - kFirst < kInWord ? kLast - kFirst : kInWord;
  for (int channel = 0; channel < head_dim; channel += kLanes, sums += bytes * kLanes) {
    Sums<kBits> of_channels;
    for (int r = kFirst; r < kLast; r += kEach) {
      for (int c = 0; c < kValueClasses; ++c) {
        const std::byte* const words =
            codes + 4 * ((r / kInWord * kValueClasses + c) * head_dim + channel);
        of_channels.template add<kFirst % kInWord, kFirst % kInWord + kEach>(words);
      }
    }
    store(bytes, of_channels.total(), sums);
  }
  return sums;
}

template <int kBits>
void sum_values(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums) {
  constexpr int kHalf = kValueRegisters / 2;
  const std::size_t bytes = sum_bytes(plane, head_dim);
  if (plane.partition < kBlockTokens) {
    sums = sum_part<kBits, 0, kHalf>(bytes, head_dim, codes, sums);
    sum_part<kBits, kHalf, kValueRegisters>(bytes, head_dim, codes, sums);
  } else {
    sum_part<kBits, 0, kValueRegisters>(bytes, head_dim, codes, sums);
  }
}

template <int kBits>
void sum_codes(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums) {
  plane.axis == Axis::kToken ? sum_keys<kBits>(plane, head_dim, codes, sums)
                             : sum_values<kBits>(plane, head_dim, codes, sums);
}

}  // namespace

void sum_codes_avx2(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums) {
  switch (plane.bits) {
    case 2: sum_codes<2>(plane, head_dim, codes, sums); break;
    case 4: sum_codes<4>(plane, head_dim, codes, sums); break;
    default: sum_codes<8>(plane, head_dim, codes, sums); break;
  }
}

}  // namespace kvlane::hack
