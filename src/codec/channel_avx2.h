// What the AVX2 kernels of `splitzip:channel` have in common: vectors of 32 bytes, which are half a
// row of a tile, and the memory they come from. Only for files that are compiled for AVX2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "codec/channel_kernels.h"

// Functions have a copy in every file, as those of channel_kernels.h.
namespace kvlane::channel::avx2 {

inline constexpr int kHalf = kTileChannels / 2;  // the bytes of a vector

static inline __m256i load(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
static inline void store(void* at, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }
static inline __m128i load_16(const void* at) {
  return _mm_loadu_si128(static_cast<const __m128i*>(at));
}
static inline __m128i load_8(const void* at) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(at));
}
static inline __m256i load_both(const void* at) { return _mm256_broadcastsi128_si256(load_16(at)); }
static inline __m256i fill(unsigned byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }

static inline std::uint32_t mask_of(__m256i v) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(v));
}
static inline unsigned count_bits(std::uint32_t mask) {
  return static_cast<unsigned>(__builtin_popcount(mask));
}

// At 64 - n: the first n lanes are set.
struct LaneTable {
  std::uint8_t bytes[2 * kTileChannels];
};
static constexpr LaneTable make_lane_table() {
  LaneTable t{};
  for (int i = 0; i < kTileChannels; ++i) t.bytes[i] = 0xFF;
  return t;
}
inline constexpr LaneTable kLanes = make_lane_table();

// The 32 lanes from `first` on, 0 or 32, that are among the first `count` of up to 64.
static inline __m256i lanes_before(int count, int first) {
  const int n = count < kTileChannels ? count : kTileChannels;
  return load(kLanes.bytes + kTileChannels - n + first);
}

// How a tile's rows are read and written. Parts of rows go through memory of full ones.
enum class Rows { kPart, kFull, kStream };

template <Rows kRows>
static inline void put(std::byte* at, __m256i v) {
  if constexpr (kRows == Rows::kStream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), v);
  } else {
    store(at, v);
  }
}

// As in channel_avx512_bf16.cpp.
[[gnu::always_inline]] static inline void fetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}
[[gnu::always_inline]] static inline void fetch_near(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}
template <Rows kRows>
[[gnu::always_inline]] static inline void fetch_to_write(const std::byte* at) {
  if constexpr (kRows != Rows::kStream) fetch_near(at);
}

void encode(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables);
int decode(const DecodeBand& band, DecodeScratch& scratch);

}  // namespace kvlane::channel::avx2
