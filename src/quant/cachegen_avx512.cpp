// `cachegen` pages with AVX-512: the 16 lanes of the coder are one vector.
//
// A step reads one symbol of each lane. Which one it is, is asked of all rows of the group's table
// at once, two rows in a vector of 16-bit numbers: how many end before the lane's slot. A pair of
// rows costs four operations (compare; count; where the symbol begins; where it ends), so a step
// with 31 symbols is some 64 operations for 16 symbols, with 15 symbols half of that; the state's
// way through compare, product and renewal, about 40 cycles that nothing else can fill, is the
// other limit. The bytes read are few: a table of 2 bytes a symbol and channel, used for 64 tokens,
// and the coded words. Values then are a table of 32 (code) or a product and a sum (paper), and
// bound by writing the page.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/cachegen_models.h"
#include "quant/cachegen_slab.h"

namespace kvlane::cachegen {
namespace {

inline __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << count) - 1);
}

// The state of all lanes, and the words that are left. Handed on by value, so that steps find the
// state in a register.
struct Lanes {
  __m512i state;
  const std::byte* words;
  std::size_t left;  // whole words
};

inline Lanes begin_lanes(const std::byte* coded, std::size_t bytes) {
  alignas(64) std::byte states[kLaneStateBytes] = {};
  const std::size_t there = bytes < kLaneStateBytes ? bytes : kLaneStateBytes;
  if (there > 0) __builtin_memcpy(states, coded, there);
  return {_mm512_load_si512(states), coded + there, (bytes - there) / 2};
}

// Lanes of `active` whose state became too small take a word each, in order.
[[gnu::always_inline]] inline void renew(Lanes& lanes, __mmask16 active) {
  const __mmask16 need =
      _mm512_mask_cmplt_epu32_mask(active, lanes.state, _mm512_set1_epi32(kLaneStateLeast));
  const __m256i words = _mm256_maskz_loadu_epi16(first_lanes(lanes.left), lanes.words);
  const __m512i taken = _mm512_maskz_expand_epi32(need, _mm512_cvtepu16_epi32(words));
  lanes.state = _mm512_mask_or_epi32(lanes.state, need, _mm512_slli_epi32(lanes.state, 16), taken);
  const auto wanted = static_cast<std::size_t>(_mm_popcnt_u32(need));
  const std::size_t count = wanted < lanes.left ? wanted : lanes.left;
  lanes.words += 2 * count;
  lanes.left -= count;
}

// The next symbol of each lane: [16] of 32 bits.
template <int kPairs>
[[gnu::always_inline]] inline __m512i read_symbols(Lanes& lanes, const RowPair* rows,
                                                   __mmask16 active) {
  const __m512i slot = _mm512_and_si512(lanes.state, _mm512_set1_epi32(0xFFFF));
  const __m512i slots =
      _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(slot));  // once for each row of a pair
  const __m512i minus_one = _mm512_set1_epi16(-1);
  __m512i count = _mm512_setzero_si512();
  // Of the rows that end before the slot the last one, and the row behind it. Rows ascend.
  __m512i before = minus_one;
  __m512i own =
      _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(rows->last[0])));
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
    const __m512i row = _mm512_load_si512(rows + i);
    const __mmask32 ended = _mm512_cmplt_epu16_mask(row, slots);
    count = _mm512_mask_sub_epi16(count, ended, count, minus_one);
    before = _mm512_mask_mov_epi16(before, ended, row);
    own = _mm512_mask_loadu_epi16(own, ended, rows[i].last[1]);
  }
  // The two rows of pairs ran apart: the greater of both is the later one.
  const auto low = [](__m512i v) { return _mm512_castsi512_si256(v); };
  const auto high = [](__m512i v) { return _mm512_extracti64x4_epi64(v, 1); };
  const __m512i first_slot = _mm512_sub_epi16(before, minus_one);
  const __m512i first = _mm512_cvtepu16_epi32(_mm256_max_epu16(low(first_slot), high(first_slot)));
  const __m512i last = _mm512_cvtepu16_epi32(_mm256_max_epu16(low(own), high(own)));
  const __m512i size = _mm512_sub_epi32(last, _mm512_sub_epi32(first, _mm512_set1_epi32(1)));
  const __m512i next = _mm512_add_epi32(
      _mm512_mullo_epi32(size, _mm512_srli_epi32(lanes.state, 16)), _mm512_sub_epi32(slot, first));
  lanes.state = _mm512_mask_mov_epi32(lanes.state, active, next);
  renew(lanes, active);
  return _mm512_cvtepu16_epi32(_mm256_add_epi16(low(count), high(count)));
}

// Evenly distributed bits of each lane.
[[gnu::always_inline]] inline __m512i read_low_bits(Lanes& lanes, __mmask16 active) {
  constexpr int kShift = 16 - kAnchorLowBits;
  const __m512i slot = _mm512_and_si512(lanes.state, _mm512_set1_epi32(0xFFFF));
  const __m512i next =
      _mm512_or_si512(_mm512_slli_epi32(_mm512_srli_epi32(lanes.state, 16), kShift),
                      _mm512_and_si512(slot, _mm512_set1_epi32((1 << kShift) - 1)));
  lanes.state = _mm512_mask_mov_epi32(lanes.state, active, next);
  renew(lanes, active);
  return _mm512_srli_epi32(slot, kShift);
}

template <int kPairs>
Lanes decode_code(const PlaneSymbols& plane, Lanes lanes) {
  const std::size_t stride = plane.stride;
  for (int group = 0; group < groups_of(plane.head_dim); ++group) {
    const __mmask16 active = first_lanes(plane.head_dim - group * kCoderLanes);
    const RowPair* const rows = plane.rows + group * (kPairs + 1);
    std::uint8_t* out = plane.symbols + group * kCoderLanes;
    for (int token = 0; token < kBlockTokens; ++token, out += stride) {
      const __m512i symbols = read_symbols<kPairs>(lanes, rows, active);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(symbols));
    }
  }
  return lanes;
}

Lanes decode_paper(const PlaneSymbols& plane, Lanes lanes) {
  const std::size_t stride = plane.stride;
  constexpr int kDeltaPairs = pairs_of(kDeltaSymbols);
  constexpr int kAnchorPairs = pairs_of(kAnchorSymbols);
  for (int group = 0; group < groups_of(plane.head_dim); ++group) {
    const __mmask16 active = first_lanes(plane.head_dim - group * kCoderLanes);
    const RowPair* const deltas = plane.rows + group * (kDeltaPairs + 1);
    const RowPair* const anchors = plane.anchor_rows + group * (kAnchorPairs + 1);
    std::uint8_t* out = plane.symbols + group * kCoderLanes;
    for (int token = 0; token < kBlockTokens; ++token, out += stride) {
      __m512i symbols;
      if (is_anchor(token)) {
        symbols = read_symbols<kAnchorPairs>(lanes, anchors, active);
        symbols = _mm512_or_si512(_mm512_slli_epi32(symbols, kAnchorLowBits),
                                  read_low_bits(lanes, active));
      } else {
        symbols = read_symbols<kDeltaPairs>(lanes, deltas, active);
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(symbols));
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
inline __m256i narrow(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, half), 16));
}

inline __m512i load_symbols(const std::uint8_t* symbols) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols)));
}

void open_code(const PlaneValues& plane) {
  const int middle = plane.middle;
  alignas(64) float units[32];
  for (int i = 0; i < 32; ++i)
    units[i] = static_cast<float>(i - middle) / static_cast<float>(middle);
  const __m512 low = _mm512_load_ps(units);
  const __m512 high = _mm512_load_ps(units + 16);
  for (int token = 0; token < kBlockTokens; ++token) {
    const __m512 largest = _mm512_set1_ps(plane.largest[token]);
    const std::uint8_t* const in = plane.symbols + token * plane.stride;
    std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
    for (int i = 0; i < plane.head_dim; i += 16) {
      const __m512 unit = _mm512_permutex2var_ps(low, load_symbols(in + i), high);
      _mm256_mask_storeu_epi16(out + i, first_lanes(plane.head_dim - i),
                               narrow(_mm512_mul_ps(unit, largest)));
    }
  }
}

void open_paper(const PlaneValues& plane) {
  const __m512 anchor_middle = _mm512_set1_ps(kAnchorMiddle);
  for (int i = 0; i < plane.head_dim; i += 16) {
    const __mmask16 lanes = first_lanes(plane.head_dim - i);
    const __m512 steps = _mm512_maskz_loadu_ps(lanes, plane.steps + i);
    __m512 anchor = _mm512_setzero_ps();
    for (int token = 0; token < kBlockTokens; ++token) {
      const __m512i symbols = load_symbols(plane.symbols + token * plane.stride + i);
      __m512 value;
      if (is_anchor(token)) {
        const __m512i from = _mm512_sub_epi32(symbols, _mm512_set1_epi32(kAnchorMiddle));
        const __m512 unit = _mm512_div_ps(_mm512_cvtepi32_ps(from), anchor_middle);
        anchor = _mm512_mul_ps(unit, _mm512_set1_ps(plane.largest[token / kAnchorEvery]));
        value = anchor;
      } else {
        const __m512i from = _mm512_sub_epi32(symbols, _mm512_set1_epi32(kDeltaMiddle));
        value = _mm512_add_ps(anchor, _mm512_mul_ps(_mm512_cvtepi32_ps(from), steps));
      }
      _mm256_mask_storeu_epi16(plane.rows + std::size_t(token) * plane.head_dim + i, lanes,
                               narrow(value));
    }
  }
}

}  // namespace

void decode_page_avx512(const PlaneSymbols& keys, const PlaneSymbols& values,
                        const std::byte* coded, std::size_t bytes) {
  const Lanes lanes = begin_lanes(coded, bytes);
  decode_plane(values, decode_plane(keys, lanes));
}

void open_plane_avx512(const PlaneValues& plane) {
  if (plane.form == Form::kCode) {
    open_code(plane);
  } else {
    open_paper(plane);
  }
}

}  // namespace kvlane::cachegen
