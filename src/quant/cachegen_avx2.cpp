// `cachegen` pages with AVX2: the 16 lanes of the coder are two vectors of 16-bit numbers, the high
// and the low halves of their states.
//
// So a slot is a vector as it is, rows of tables are compared with all lanes at once, and the next
// state is a product of 16 bits by 16 with two carries. A step reads one symbol of each lane: which
// one it is, is asked of all rows of the group's table, 7 operations each (compare: two; count;
// where the symbol begins: two; where it ends: two), in two chains. With 31 symbols that is some
// 210 operations and 35 others for 16 symbols, with 15 symbols half of that; AVX-512 has a fourth
// (cachegen_avx512.cpp). Values then are a table of each token, looked up by pshufb (code), or a
// product and a sum (paper).
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/cachegen_models.h"
#include "quant/cachegen_slab.h"

namespace kvlane::cachegen {
namespace {

inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline __m128i load_half(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
inline void store(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

// 16 numbers of 32 bits, below 2^16, to 16 bits.
inline __m256i pack(__m256i first, __m256i second) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), _MM_SHUFFLE(3, 1, 2, 0));
}

// Lanes that are there, of 16 bits each.
inline __m256i first_lanes(int count) {
  const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm256_cmpgt_epi16(_mm256_set1_epi16(static_cast<short>(count < 16 ? count : 16)), lane);
}

// Entry m: for 8 words one after another, where they go when lanes m take a word each. Others get
// zero.
struct Places {
  std::uint8_t of[256][16];
  constexpr Places() : of() {
    for (int mask = 0; mask < 256; ++mask) {
      int next = 0;
      for (int lane = 0; lane < 8; ++lane) {
        const bool takes = (mask >> lane & 1) != 0;
        of[mask][2 * lane] = static_cast<std::uint8_t>(takes ? 2 * next : 0x80);
        of[mask][2 * lane + 1] = static_cast<std::uint8_t>(takes ? 2 * next + 1 : 0x80);
        if (takes) ++next;
      }
    }
  }
};
constexpr Places kPlaces;

// The states of all lanes, and the words that are left. Handed on by value, so that steps find the
// states in registers.
struct Lanes {
  __m256i high, low;
  const std::byte* words;
  std::size_t left;  // whole words
};

inline Lanes begin_lanes(const std::byte* coded, std::size_t bytes) {
  alignas(32) std::byte states[kLaneStateBytes] = {};
  const std::size_t there = bytes < kLaneStateBytes ? bytes : kLaneStateBytes;
  if (there > 0) __builtin_memcpy(states, coded, there);
  const __m256i first = load(states);
  const __m256i second = load(states + 32);
  const __m256i mask = _mm256_set1_epi32(0xFFFF);
  return {pack(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16)),
          pack(_mm256_and_si256(first, mask), _mm256_and_si256(second, mask)), coded + there,
          (bytes - there) / 2};
}

// The next words for the lanes of two masks, in order; zeros behind the last word.
[[gnu::always_inline]] inline __m256i take_words(Lanes& lanes, unsigned first, unsigned second) {
  const auto first_count = static_cast<std::size_t>(__builtin_popcount(first));
  const auto count = first_count + static_cast<std::size_t>(__builtin_popcount(second));
  const std::byte* from = lanes.words;
  alignas(32) std::byte rest[64] = {};
  if (lanes.left < 16) [[unlikely]] {
    if (lanes.left > 0) __builtin_memcpy(rest, lanes.words, 2 * lanes.left);
    from = rest;
  }
  const __m128i of_first = _mm_shuffle_epi8(load_half(from), load_half(kPlaces.of[first]));
  const __m128i of_second =
      _mm_shuffle_epi8(load_half(from + 2 * first_count), load_half(kPlaces.of[second]));
  const std::size_t taken = count < lanes.left ? count : lanes.left;
  lanes.words += 2 * taken;
  lanes.left -= taken;
  return _mm256_inserti128_si256(_mm256_castsi128_si256(of_first), of_second, 1);
}

// Lanes of `active` go on to a state; where that became too small they take a word each, in order.
[[gnu::always_inline]] inline void renew(Lanes& lanes, __m256i high, __m256i low, __m256i active) {
  const __m256i need = _mm256_and_si256(_mm256_cmpeq_epi16(high, _mm256_setzero_si256()), active);
  const __m256i bytes = _mm256_packs_epi16(need, _mm256_setzero_si256());
  const auto mask = static_cast<unsigned>(_mm256_movemask_epi8(bytes));
  const __m256i words = take_words(lanes, mask & 0xFF, mask >> 16 & 0xFF);
  high = _mm256_or_si256(high, _mm256_and_si256(need, low));
  low = _mm256_or_si256(_mm256_andnot_si256(need, low), words);
  lanes.high = _mm256_blendv_epi8(lanes.high, high, active);
  lanes.low = _mm256_blendv_epi8(lanes.low, low, active);
}

// The next symbol of each lane, in 16 bits.
template <int kPairs>
[[gnu::always_inline]] inline __m256i read_symbols(Lanes& lanes, const RowPair* rows,
                                                   __m256i active) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i slot = lanes.low;
  // How many rows do not end before the slot, as a negative number; of those that do the last one,
  // and the row behind it. Rows ascend, so the last one is the greatest.
  __m256i others = zero;
  __m256i before[2] = {zero, zero};
  __m256i row = load(rows->last[0]);
  __m256i own[2] = {row, row};
#pragma GCC unroll 64
  for (int i = 0; i < 2 * kPairs; ++i) {
    const __m256i next = load(rows[(i + 1) / 2].last[(i + 1) % 2]);
    const __m256i other = _mm256_cmpeq_epi16(_mm256_max_epu16(row, slot), row);
    others = _mm256_add_epi16(others, other);
    before[i % 2] = _mm256_max_epu16(before[i % 2], _mm256_andnot_si256(other, row));
    own[i % 2] = _mm256_max_epu16(own[i % 2], _mm256_andnot_si256(other, next));
    row = next;
  }
  const __m256i symbols = _mm256_add_epi16(others, _mm256_set1_epi16(2 * kPairs));
  const __m256i last = _mm256_max_epu16(own[0], own[1]);
  // Behind the row before, where there is one.
  const __m256i first =
      _mm256_sub_epi16(_mm256_max_epu16(before[0], before[1]), _mm256_cmpgt_epi16(symbols, zero));
  // (last - first) * high + high + (slot - first): the size may be 2^16.
  const __m256i less = _mm256_sub_epi16(last, first);
  const __m256i product = _mm256_mullo_epi16(less, lanes.high);
  __m256i high = _mm256_mulhi_epu16(less, lanes.high);
  const auto add = [&](__m256i sum, __m256i x) __attribute__((always_inline)) {
    const __m256i low = _mm256_add_epi16(sum, x);
    const __m256i fits = _mm256_cmpeq_epi16(_mm256_max_epu16(low, x), low);
    high = _mm256_add_epi16(high, _mm256_add_epi16(fits, _mm256_set1_epi16(1)));
    return low;
  };
  const __m256i low = add(add(product, lanes.high), _mm256_sub_epi16(slot, first));
  renew(lanes, high, low, active);
  return symbols;
}

// Evenly distributed bits of each lane.
[[gnu::always_inline]] inline __m256i read_low_bits(Lanes& lanes, __m256i active) {
  constexpr int kShift = 16 - kAnchorLowBits;
  const __m256i rest = _mm256_and_si256(lanes.low, _mm256_set1_epi16((1 << kShift) - 1));
  const __m256i bits = _mm256_srli_epi16(lanes.low, kShift);
  renew(lanes, _mm256_srli_epi16(lanes.high, kAnchorLowBits),
        _mm256_or_si256(_mm256_slli_epi16(lanes.high, kShift), rest), active);
  return bits;
}

inline void store_symbols(std::uint8_t* to, __m256i symbols) {
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packus_epi16(_mm256_castsi256_si128(symbols), _mm256_extracti128_si256(symbols, 1)));
}

template <int kPairs>
Lanes decode_code(const PlaneSymbols& plane, Lanes lanes) {
  const std::size_t stride = plane.stride;
  const int groups = (plane.head_dim + kCoderLanes - 1) / kCoderLanes;
  for (int group = 0; group < groups; ++group) {
    const __m256i active = first_lanes(plane.head_dim - group * kCoderLanes);
    const RowPair* const rows = plane.rows + group * (kPairs + 1);
    std::uint8_t* out = plane.symbols + group * kCoderLanes;
    for (int token = 0; token < kBlockTokens; ++token, out += stride) {
      store_symbols(out, read_symbols<kPairs>(lanes, rows, active));
    }
  }
  return lanes;
}

Lanes decode_paper(const PlaneSymbols& plane, Lanes lanes) {
  constexpr int kDeltaPairs = pairs_of(kDeltaSymbols);
  constexpr int kAnchorPairs = pairs_of(kAnchorSymbols);
  const std::size_t stride = plane.stride;
  const int groups = (plane.head_dim + kCoderLanes - 1) / kCoderLanes;
  for (int group = 0; group < groups; ++group) {
    const __m256i active = first_lanes(plane.head_dim - group * kCoderLanes);
    const RowPair* const deltas = plane.rows + group * (kDeltaPairs + 1);
    const RowPair* const anchors = plane.anchor_rows + group * (kAnchorPairs + 1);
    std::uint8_t* out = plane.symbols + group * kCoderLanes;
    for (int token = 0; token < kBlockTokens; ++token, out += stride) {
      __m256i symbols;
      if (token % kAnchorEvery == 0) {
        symbols = read_symbols<kAnchorPairs>(lanes, anchors, active);
        symbols = _mm256_or_si256(_mm256_slli_epi16(symbols, kAnchorLowBits),
                                  read_low_bits(lanes, active));
      } else {
        symbols = read_symbols<kDeltaPairs>(lanes, deltas, active);
      }
      store_symbols(out, symbols);
    }
  }
  return lanes;
}

Lanes decode_plane(const PlaneSymbols& plane, const Lanes& lanes) {
  if (plane.form == Form::kPaper) return decode_paper(plane, lanes);
  switch (plane.alphabet) {
    case symbols_of(12): return decode_code<pairs_of(symbols_of(12))>(plane, lanes);
    case symbols_of(16): return decode_code<pairs_of(symbols_of(16))>(plane, lanes);
    default: return decode_code<pairs_of(symbols_of(32))>(plane, lanes);
  }
}

// ------------------------------------------------------------------------------------------------
// Values.

// Rounds half to even, as to_bf16() does; there are no NaN here.
inline __m256i rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
}

// 16 values to a row, or those of them that it has.
inline void store_values(std::uint16_t* out, __m256i values, int count) {
  if (count >= 16) return store(out, values);
  alignas(32) std::uint16_t of[16];
  store(of, values);
  for (int i = 0; i < count; ++i) out[i] = of[i];
}

// 16 BF16 values: the lower half has their low bytes, the upper one their high bytes.
inline __m256i table_of(__m256 first, __m256 second) {
  const __m256i words = pack(rounded(first), rounded(second));
  return _mm256_permute4x64_epi64(
      _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xFF)),
                          _mm256_srli_epi16(words, 8)),
      _MM_SHUFFLE(3, 1, 2, 0));
}

void open_code(const PlaneValues& plane) {
  const int middle = plane.middle;
  alignas(32) float units[32];
  for (int i = 0; i < 32; ++i) {
    units[i] = static_cast<float>(i - middle) / static_cast<float>(middle);
  }
  for (int token = 0; token < kBlockTokens; ++token) {
    const __m256 largest = _mm256_set1_ps(plane.largest[token]);
    const auto value = [&](int i) { return _mm256_mul_ps(_mm256_load_ps(units + i), largest); };
    // Symbols below 16, and the others: pshufb makes zero what is not its own.
    const __m256i below = table_of(value(0), value(8));
    const __m256i above = table_of(value(16), value(24));
    const std::uint8_t* const in = plane.symbols + token * plane.stride;
    std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
    for (int i = 0; i < plane.head_dim; i += 16) {
      const __m256i symbols = _mm256_broadcastsi128_si256(load_half(in + i));
      const __m256i bytes = _mm256_or_si256(
          _mm256_shuffle_epi8(below, _mm256_add_epi8(symbols, _mm256_set1_epi8(0x70))),
          _mm256_shuffle_epi8(above, _mm256_sub_epi8(symbols, _mm256_set1_epi8(16))));
      const __m128i low = _mm256_castsi256_si128(bytes);
      const __m128i high = _mm256_extracti128_si256(bytes, 1);
      const __m256i values = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_unpacklo_epi8(low, high)), _mm_unpackhi_epi8(low, high), 1);
      store_values(out + i, values, plane.head_dim - i);
    }
  }
}

// 8 symbols less their middle.
inline __m256 load_distances(const std::uint8_t* symbols, int middle) {
  const __m256i of =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols)));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(of, _mm256_set1_epi32(middle)));
}

// The first `count` of 8 numbers.
inline __m256 load_some(const float* from, int count) {
  const __m256i mask =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_maskload_ps(from, mask);
}

void open_paper(const PlaneValues& plane) {
  const __m256 anchor_middle = _mm256_set1_ps(kAnchorMiddle);
  for (int i = 0; i < plane.head_dim; i += 16) {
    const int count = plane.head_dim - i;
    const __m256 steps[2] = {load_some(plane.steps + i, count),
                             load_some(plane.steps + i + 8, count - 8)};
    __m256 anchor[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int token = 0; token < kBlockTokens; ++token) {
      const std::uint8_t* const symbols = plane.symbols + token * plane.stride + i;
      __m256 value[2];
      for (int half = 0; half < 2; ++half) {
        if (token % kAnchorEvery == 0) {
          const __m256 unit =
              _mm256_div_ps(load_distances(symbols + 8 * half, kAnchorMiddle), anchor_middle);
          anchor[half] = _mm256_mul_ps(unit, _mm256_set1_ps(plane.largest[token / kAnchorEvery]));
          value[half] = anchor[half];
        } else {
          const __m256 distance = load_distances(symbols + 8 * half, kDeltaMiddle);
          value[half] = _mm256_add_ps(anchor[half], _mm256_mul_ps(distance, steps[half]));
        }
      }
      store_values(plane.rows + std::size_t(token) * plane.head_dim + i,
                   pack(rounded(value[0]), rounded(value[1])), count);
    }
  }
}

}  // namespace

void decode_page_avx2(const PlaneSymbols& keys, const PlaneSymbols& values, const std::byte* coded,
                      std::size_t bytes) {
  const Lanes lanes = begin_lanes(coded, bytes);
  decode_plane(values, decode_plane(keys, lanes));
}

void open_plane_avx2(const PlaneValues& plane) {
  if (plane.form == Form::kCode) {
    open_code(plane);
  } else {
    open_paper(plane);
  }
}

}  // namespace kvlane::cachegen
