// What attention on codes by integer products has in common in all its forms, with AVX2: sums of
// products of codes, of which scores and outputs are made, and weights as bytes. For such files
// only.
//
// VPMADDUBSW gives sums of two products in 16 bits, of which as many are added there as are sure to
// fit; VPMADDWD with ones makes sums of four of them, one a lane. Of 8-bit codes two products would
// not fit: bytes are widened, and VPMADDWD multiplies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "attention/hack_pages.h"
#include "quant/hack_avx2.h"

namespace kvlane::hack_products {

using hack::avx2::load;
// --- products of bytes --------------------------------------------------------------------------

inline constexpr int kQueryMost = 127;
inline constexpr int kWeightMost = 255;
// The greatest magnitude of bytes with a sign.
inline constexpr int kSignedMost = 128;

// One row has no others to share shifts with. So 2-bit codes of odd registers stay where they are,
// as multiples of 4, and have sums of their own, which are divided in the end.
template <int kBits, int kRows>
inline constexpr bool kInPlace = kBits == 2 && kRows == 1;
template <int kBits, int kRows>
inline constexpr int kSums = kInPlace<kBits, kRows> ? 2 : 1;

// How many results of VPMADDUBSW can be added in 16 bits, when factors of codes are up to `most`.
template <int kBits, int kRows>
static constexpr int pairs_that_fit(int most) {
  constexpr int kCode = ((1 << kBits) - 1) * (kInPlace<kBits, kRows> ? 4 : 1);
  return 32767 / (2 * most * kCode);
}
static_assert(pairs_that_fit<2, 1>(kSignedMost) == 10 && pairs_that_fit<2, 1>(kWeightMost) == 5);
static_assert(pairs_that_fit<2, 4>(kSignedMost) == 42 && pairs_that_fit<2, 4>(kWeightMost) == 21);
static_assert(pairs_that_fit<4, 1>(kSignedMost) == 8 && pairs_that_fit<4, 1>(kWeightMost) == 4);
// Not even one: the instruction itself would saturate.
static_assert(pairs_that_fit<8, 1>(kSignedMost) == 0 && pairs_that_fit<8, 1>(kWeightMost) == 0);

// Codes of register r of a word, as bytes; in place those of odd registers times 4.
template <int kBits, int kRows>
static inline __m256i codes_of(__m256i words, int r) {
  constexpr bool kStay = kInPlace<kBits, kRows>;
  const int shift = kStay ? r / 2 * 4 : r * kBits;
  const int mask = ((1 << kBits) - 1) << (kStay && r % 2 == 1 ? 2 : 0);
  const __m256i shifted = shift == 0 ? words : _mm256_srli_epi16(words, shift);
  return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)));
}

static inline __m256i broadcast(const void* four_bytes) {
  int word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Has a sum in a register here. Without it the compiler adds products up among themselves first,
// which takes more registers than there are.
static inline void hold(__m256i& sum) { asm("" : "+x"(sum)); }

// Sums in 16 bits to sums in 32, those of a lane together: `sums` of even registers, and of odd
// ones where codes are in place. What fits there as multiples of 4 is no more than a quarter of
// what would fit, so both together do.
template <int kBits, int kRows>
static inline __m256i widen(const __m256i (&sums)[kSums<kBits, kRows>]) {
  __m256i all = sums[0];
  if constexpr (kInPlace<kBits, kRows>) {
    all = _mm256_add_epi16(all, _mm256_srai_epi16(sums[1], 2));
  }
  return _mm256_madd_epi16(all, _mm256_set1_epi16(1));
}

// Bytes 0 and 2 of each lane, and bytes 1 and 3, as numbers of 16 bits.
struct Bytes {
  __m256i even, odd;
};
static inline Bytes unsigned_bytes(__m256i x) {
  return {_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(x, 8)};
}
static inline Bytes signed_bytes(__m256i x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}
static inline __m256i product(const Bytes& a, const Bytes& b) {
  return _mm256_add_epi32(_mm256_madd_epi16(a.even, b.even), _mm256_madd_epi16(a.odd, b.odd));
}

// The same of bytes with or without a sign, as Byte has one; and their products with codes, in
// pairs.
template <class Byte>
inline constexpr bool kHasSign = static_cast<Byte>(-1) < 0;
template <class Byte>
static inline Bytes bytes_as(__m256i x) {
  if constexpr (kHasSign<Byte>) return signed_bytes(x);
  return unsigned_bytes(x);
}
template <class Byte>
static inline __m256i pairs_of(__m256i bytes, __m256i codes) {
  if constexpr (kHasSign<Byte>) return _mm256_maddubs_epi16(codes, bytes);
  return _mm256_maddubs_epi16(bytes, codes);
}

// --- K ------------------------------------------------------------------------------------------

// As add_keys(), of channels whose sums fit into 16 bits.
template <int kBits, int kRows, int kGroups>
static inline void add_narrow_keys(const HackQuery& query, int row, int first, int end,
                                   const std::byte* words, Prefetch& prefetch,
                                   __m256i (&dots)[kRows][kGroups]) {
  constexpr int kRegisters = 8 / kBits;
  __m256i sums[kRows][kGroups][kSums<kBits, kRows>];
  for (auto& of_row : sums) {
    for (auto& of_group : of_row) {
      for (__m256i& sum : of_group) sum = _mm256_setzero_si256();
    }
  }
  for (int i = first; i < end; i += 32 / kBits, words += 4 * kBlockTokens) {
    for (int group = 0; group < kGroups; group += 2) prefetch.line();
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      __m256i codes[kGroups];
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        codes[group] = codes_of<kBits, kRows>(load(words + 32 * group), r);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) {
        const __m256i four = broadcast(&query.codes[row + j][i + 4 * r]);
#pragma GCC unroll 4
        for (int group = 0; group < kGroups; ++group) {
          __m256i& sum = sums[j][group][r % kSums<kBits, kRows>];
          sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[group], four));
          hold(sum);
        }
      }
    }
  }
  for (int j = 0; j < kRows; ++j) {
    for (int group = 0; group < kGroups; ++group) {
      dots[j][group] = _mm256_add_epi32(dots[j][group], widen<kBits, kRows>(sums[j][group]));
    }
  }
}

// As add_keys(), for 8 bits.
template <int kRows, int kGroups>
static inline void add_wide_keys(const HackQuery& query, int row, int first, int end,
                                 const std::byte* words, Prefetch& prefetch,
                                 __m256i (&dots)[kRows][kGroups]) {
  for (int i = first; i < end; i += 4, words += 4 * kBlockTokens) {
    for (int group = 0; group < kGroups; group += 2) prefetch.line();
    Bytes codes[kGroups];
#pragma GCC unroll 4
    for (int group = 0; group < kGroups; ++group) {
      codes[group] = unsigned_bytes(load(words + 32 * group));
    }
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      const Bytes four = signed_bytes(broadcast(&query.codes[row + j][i]));
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        dots[j][group] = _mm256_add_epi32(dots[j][group], product(codes[group], four));
      }
    }
  }
}

// Adds to dots the products of channels first ... end - 1 of K, for kRows rows and kGroups times 8
// tokens. `words`: of the first channel and token.
template <int kBits, int kRows, int kGroups>
static inline void add_keys(const HackQuery& query, int row, int first, int end,
                            const std::byte* words, Prefetch& prefetch,
                            __m256i (&dots)[kRows][kGroups]) {
  if constexpr (kBits == 8) {
    add_wide_keys(query, row, first, end, words, prefetch, dots);
  } else {
    // Each sum takes as many pairs of a word as there are registers of its kind.
    constexpr int kWords =
        pairs_that_fit<kBits, kRows>(kSignedMost) / (8 / kBits / kSums<kBits, kRows>);
    static_assert(kWords > 0);
    constexpr int kRun = kWords * (32 / kBits);
    for (int i = first; i < end; i += kRun, words += 4 * kBlockTokens * kWords) {
      const int stop = end - i < kRun ? end : i + kRun;
      add_narrow_keys<kBits>(query, row, i, stop, words, prefetch, dots);
    }
  }
}

// --- V ------------------------------------------------------------------------------------------

// As add_values(), for 2 or 4 bits. Room is for bytes without a sign.
template <int kBits, class Byte, int kRows, int kParts, int kGroups>
static inline void add_narrow_values(const Byte (*bytes)[kBlockTokens], int row,
                                     const std::byte* words, int stride, Prefetch& prefetch,
                                     __m256i (&dots)[kRows][kParts][kGroups]) {
  constexpr int kRegisters = 8 / kBits;
  // Halves of registers that have sums of their own: 2-bit words have both partitions, and codes in
  // place leave room for the sums of one half.
  constexpr int kHalves = kBits == 2 && (kParts == 2 || kInPlace<kBits, kRows>) ? 2 : 1;
  constexpr int kPairs = kRegisters / kHalves / kSums<kBits, kRows>;  // of a word, for one sum
  constexpr int kRoom = pairs_that_fit<kBits, kRows>(kWeightMost) / kPairs;
  constexpr int kClasses = kRoom < hack::kValueClasses ? kRoom : hack::kValueClasses;
  static_assert(kClasses > 0 && hack::kValueClasses % kClasses == 0);
  for (int word = 0; word < hack::kValueRegisters / kRegisters; ++word) {
    for (int begin = 0; begin < hack::kValueClasses; begin += kClasses) {
      __m256i sums[kRows][kHalves][kGroups][kSums<kBits, kRows>];
      for (auto& of_row : sums) {
        for (auto& of_half : of_row) {
          for (auto& of_group : of_half) {
            for (__m256i& sum : of_group) sum = _mm256_setzero_si256();
          }
        }
      }
      for (int c = begin; c < begin + kClasses; ++c, words += stride) {
        prefetch.line();
#pragma GCC unroll 4
        for (int i = 0; i < kRegisters; ++i) {
          __m256i codes[kGroups];
#pragma GCC unroll 2
          for (int group = 0; group < kGroups; ++group) {
            codes[group] = codes_of<kBits, kRows>(load(words + 32 * group), i);
          }
#pragma GCC unroll 4
          for (int j = 0; j < kRows; ++j) {
            const __m256i four = broadcast(bytes[row + j] + 16 * (kRegisters * word + i) + 4 * c);
#pragma GCC unroll 2
            for (int group = 0; group < kGroups; ++group) {
              __m256i& sum = sums[j][i * kHalves / kRegisters][group][i % kSums<kBits, kRows>];
              sum = _mm256_add_epi16(sum, pairs_of<Byte>(four, codes[group]));
              hold(sum);
            }
          }
        }
      }
      for (int j = 0; j < kRows; ++j) {
        for (int half = 0; half < kHalves; ++half) {
          for (int group = 0; group < kGroups; ++group) {
            __m256i& dot = dots[j][kParts == 1 ? 0 : word + half][group];
            dot = _mm256_add_epi32(dot, widen<kBits, kRows>(sums[j][half][group]));
          }
        }
      }
    }
  }
}

// As add_values(), for 8 bits.
template <class Byte, int kRows, int kParts, int kGroups>
static inline void add_wide_values(const Byte (*bytes)[kBlockTokens], int row,
                                   const std::byte* words, int stride, Prefetch& prefetch,
                                   __m256i (&dots)[kRows][kParts][kGroups]) {
  for (int r = 0; r < hack::kValueRegisters; ++r) {
    for (int c = 0; c < hack::kValueClasses; ++c, words += stride) {
      prefetch.line();
      Bytes codes[kGroups];
#pragma GCC unroll 2
      for (int group = 0; group < kGroups; ++group) {
        codes[group] = unsigned_bytes(load(words + 32 * group));
      }
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) {
        const Bytes four = bytes_as<Byte>(broadcast(bytes[row + j] + 16 * r + 4 * c));
#pragma GCC unroll 2
        for (int group = 0; group < kGroups; ++group) {
          __m256i& dot = dots[j][kParts == 1 ? 0 : r / 2][group];
          dot = _mm256_add_epi32(dot, product(codes[group], four));
        }
      }
    }
  }
}

// Adds to dots the products of V for kRows rows and kGroups times 8 channels, kParts partitions of
// tokens, 1 or 2, apart. `bytes`: weights of all rows, 16 r + 4 c + k that of value_token(r, c, k);
// `words`: of the first channel; `stride` bytes from one class to the next.
template <int kBits, class Byte, int kRows, int kParts, int kGroups>
static inline void add_values(const Byte (*bytes)[kBlockTokens], int row, const std::byte* words,
                              int stride, Prefetch& prefetch,
                              __m256i (&dots)[kRows][kParts][kGroups]) {
  if constexpr (kBits == 8) {
    add_wide_values(bytes, row, words, stride, prefetch, dots);
  } else {
    add_narrow_values<kBits>(bytes, row, words, stride, prefetch, dots);
  }
}

// --- weights ------------------------------------------------------------------------------------

// Sums, or greatest, or least, of the lanes of `rows` vectors, four at a time: a row's order of
// summation is the same wherever it is. `v` and `to` have room for whole fours.
struct Sum {
  static __m256 of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};
struct Greatest {
  static __m256 of(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
};
struct Least {
  static __m256 of(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_min_ps(a, b); }
};
template <class Op>
static inline void reduce(const __m256* v, int rows, float* to) {
  for (int row = 0; row < rows; row += 4) {
    const __m256 low =
        Op::of(_mm256_unpacklo_ps(v[row], v[row + 1]), _mm256_unpackhi_ps(v[row], v[row + 1]));
    const __m256 high = Op::of(_mm256_unpacklo_ps(v[row + 2], v[row + 3]),
                               _mm256_unpackhi_ps(v[row + 2], v[row + 3]));
    // Both halves are the four rows now.
    const __m256 four =
        Op::of(_mm256_shuffle_ps(low, high, 0x44), _mm256_shuffle_ps(low, high, 0xee));
    _mm_storeu_ps(to + row, Op::of(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
  }
}

// The codes of 32 tokens, from 0 to 255, classes 0 ... 3 of 8 each, as bytes in the order of V's
// words: 4 c ... 4 c + 3 of an even register, then of an odd one. All in registers: a load that
// spans several stores waits for them.
static inline __m256i in_value_order(const __m256i (&code)[4]) {
  // Tokens 0 ... 3 of each class are in one half, 4 ... 7 in the other; an even register has the
  // first two of both.
  const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(code[0], code[1]),
                                             _mm256_packus_epi32(code[2], code[3]));
  const __m256i even_first = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i registers =
      _mm256_permute4x64_epi64(_mm256_shuffle_epi8(packed, even_first), _MM_SHUFFLE(3, 1, 2, 0));
  const __m256i in_turns = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  return _mm256_shuffle_epi8(registers, in_turns);
}

// Sums of 8 bytes each, in every other lane; the lanes between are zero.
static inline __m256 sums_of_bytes(__m256i bytes) {
  return _mm256_cvtepi32_ps(_mm256_sad_epu8(bytes, _mm256_setzero_si256()));
}

}  // namespace kvlane::hack_products
