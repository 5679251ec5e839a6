// The decoder of `splitzip:channel` with AVX2: the way of channel_avx512_bf16.cpp in halves of its
// vectors, and with tables for what vpexpandb does there, as in channel_encode_avx2.cpp.
//
// No inline library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel_avx2.h"

namespace kvlane::channel::avx2 {
namespace {

// Elements of layers that have been decoded are kept this much too small, so that adding them to a
// code, or to the zero that stands for an escape, replaces it.
constexpr std::uint8_t kBias = kEscape;

struct Tables {
  std::uint8_t place[256][8];           // for a bit that is set how many are before it; else "zero"
  std::uint8_t distances[kLayers][16];  // of a code, less kBias but in layer 1
};

constexpr Tables make_tables() {
  Tables t{};
  for (int set = 0; set < 256; ++set) {
    int count = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const bool is_set = (set >> bit & 1) != 0;
      t.place[set][bit] = static_cast<std::uint8_t>(is_set ? count++ : 0x80);
    }
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (unsigned c = 0; c < kEscape; ++c) {
      const unsigned symbol = kSymbols[layer][c];
      t.distances[layer][c] = static_cast<std::uint8_t>(layer == 0 ? symbol : symbol - kBias);
    }
  }
  t.distances[0][kEscape] = kBias;
  return t;
}
constexpr Tables kTables = make_tables();

// Escapes of one layer, in order, less kBias; `next` may run past what there is, but not past the
// scratch: no layer has more codes than its buffer has bytes.
struct Elements {
  const std::uint8_t* next;

  // The next elements in the bytes whose bits are set, 0 in the others.
  __m128i take(std::uint32_t set) {
    const __m128i placed = _mm_shuffle_epi8(load_8(next), load_8(kTables.place[set]));
    next += count_bits(set);
    return placed;
  }
  __m256i take_32(std::uint32_t mask) {
    const __m128i a = take(mask & 0xFF);
    const __m128i b = take(mask >> 8 & 0xFF);
    const __m128i c = take(mask >> 16 & 0xFF);
    const __m128i d = take(mask >> 24);
    return _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
  }
  // The same where bytes 8 to 15 and 16 to 23 have changed places.
  __m256i take_32_crossed(std::uint32_t mask) {
    const __m128i a = take(mask & 0xFF);
    const __m128i b = take(mask >> 16 & 0xFF);
    const __m128i c = take(mask >> 8 & 0xFF);
    const __m128i d = take(mask >> 24);
    return _mm256_set_m128i(_mm_unpacklo_epi64(b, d), _mm_unpacklo_epi64(a, c));
  }
};

// As encode_group(): 64 bytes at `in`. False when bits behind the codes are set.
template <bool kFull>
inline bool decode_group(const std::byte* in, int count, int bytes, __m256i table,
                         Elements& escapes, std::uint8_t* layer) {
  const __m256i three = fill(kEscape);
  __m256i packed[2] = {load(in), load(in + kHalf)};
  __m256i behind = _mm256_setzero_si256();
  for (int k = 0; k < 4; ++k) {
    const int left = count - k * bytes;
    const int there = left < 0 ? 0 : left < bytes ? left : bytes;
    for (int h = 0; h < 2; ++h) {
      __m256i codes = _mm256_and_si256(packed[h], three);
      packed[h] = _mm256_srli_epi16(packed[h], 2);
      if constexpr (!kFull) {
        const __m256i lanes = lanes_before(there, h * kHalf);
        behind = _mm256_or_si256(behind, _mm256_andnot_si256(lanes, codes));
        if (there <= h * kHalf) continue;
        codes = _mm256_and_si256(codes, lanes);
      }
      const __m256i elements = escapes.take_32(mask_of(_mm256_cmpeq_epi8(codes, three)));
      store(layer + k * bytes + h * kHalf,
            _mm256_add_epi8(_mm256_shuffle_epi8(table, codes), elements));
    }
  }
  return _mm256_testz_si256(behind, behind) != 0;
}

// The `count` distances of a layer. False when bits behind its codes are set.
inline bool decode_layer(const std::byte* in, std::size_t count, int index, Elements& escapes,
                         std::uint8_t* layer) {
  const __m256i table = load_both(kTables.distances[index]);
  for (; count >= kGroupCodes; count -= kGroupCodes) {
    decode_group<true>(in, kGroupCodes, kTileChannels, table, escapes, layer);
    in += kTileChannels;
    layer += kGroupCodes;
  }
  if (count == 0) return true;
  alignas(32) std::byte last[kTileChannels] = {};
  const std::size_t bytes = packed_bytes(count);
  __builtin_memcpy(last, in, bytes);
  return decode_group<false>(last, static_cast<int>(count), static_cast<int>(bytes), table, escapes,
                             layer);
}

// The elements of layer 2, from the raw bytes backwards.
inline bool decode_tail(const std::byte* tail, const TileCounts& tile, DecodeScratch& scratch,
                        std::uint8_t* elements) {
  const std::uint16_t* const counts = tile.escapes;
  const std::byte* parts[kLayers];  // of layers 2 to 4; then the raw bytes
  parts[0] = tail;
  for (int layer = 1; layer < kLayers; ++layer) {
    parts[layer] = parts[layer - 1] + packed_bytes(counts[layer - 1]);
  }
  std::uint8_t* const raw = scratch.layers[kLayers - 2].bytes;
  __builtin_memcpy(raw, parts[kLayers - 1], counts[kLayers - 1]);
  for (int i = 0; i < counts[kLayers - 1]; i += kHalf) {
    store(raw + i, _mm256_sub_epi8(load(raw + i), fill(kBias)));
  }
  bool good = true;
  for (int layer = kLayers - 1; layer > 0; --layer) {
    const std::uint8_t* const from = scratch.layers[layer - 1].bytes;
    Elements escapes{from};
    std::uint8_t* const out = layer > 1 ? scratch.layers[layer - 2].bytes : elements;
    good &= decode_layer(parts[layer - 1], counts[layer - 1], layer, escapes, out);
    good &= escapes.next - from == counts[layer];
  }
  return good;
}

// What decoding the rows of a tile needs and moves on. Bytes 8 to 15 and 16 to 23 of bases have
// changed places, as join_half() needs them.
struct RowReader {
  Elements escapes;
  const std::byte* codes;
  __m256i bases[2];
};

inline __m256i cross(__m256i v) { return _mm256_permute4x64_epi64(v, 0xD8); }

// 32 values of a row: their exponents, crossed, with sign and mantissa from `rest`.
template <Rows kRows>
inline void join_half(__m256i exponents, const std::byte* rest, std::byte* out) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i rest_bits = _mm256_set1_epi16(static_cast<short>(0x807F));
  const __m256i a = _mm256_srli_epi16(_mm256_unpacklo_epi8(zero, exponents), 1);
  const __m256i b = _mm256_srli_epi16(_mm256_unpackhi_epi8(zero, exponents), 1);
  const __m256i rest_a = _mm256_and_si256(_mm256_cvtepi8_epi16(load_16(rest)), rest_bits);
  const __m256i rest_b = _mm256_and_si256(_mm256_cvtepi8_epi16(load_16(rest + 16)), rest_bits);
  put<kRows>(out, _mm256_or_si256(a, rest_a));
  put<kRows>(out + kHalf, _mm256_or_si256(b, rest_b));
}

// One row of a tile, from its codes in the lowest bits of `packed`.
template <Rows kRows>
inline void decode_row(Elements& escapes, const __m256i (&packed)[2], const __m256i (&bases)[2],
                       const std::byte* rest, std::byte* out) {
  static_assert(kSymbols[0][0] == 0 && kSymbols[0][1] == 1 && kSymbols[0][2] == 2,
                "codes of the first layer are distances");
  const __m256i three = fill(kEscape);
  for (int h = 0; h < 2; ++h) {
    const __m256i codes = _mm256_and_si256(packed[h], three);
    const __m256i elements = escapes.take_32_crossed(mask_of(_mm256_cmpeq_epi8(codes, three)));
    const __m256i exponents = _mm256_sub_epi8(_mm256_sub_epi8(bases[h], codes), elements);
    join_half<kRows>(exponents, rest + h * kHalf, out + 2 * h * kHalf);
  }
}

// How far ahead to fetch, as in channel_avx512_bf16.cpp.
struct Ahead {
  std::ptrdiff_t rests, codes;
  std::size_t values;
};

// Where the rows of a tile are.
struct RowPlace {
  const std::byte* rest;
  std::byte* out;
  std::size_t row_values;
  Ahead ahead;
  int channels;
};

// Up to four rows of one tile: those whose codes are in the same bytes. False when codes of rows
// that are not there are set.
template <Rows kRows>
inline bool decode_rows(RowReader& reader, int rows, RowPlace at) {
  alignas(32) std::byte part[kTileChannels] = {};
  const std::byte* codes = reader.codes;
  fetch(codes + at.ahead.codes);
  if constexpr (kRows == Rows::kPart) {
    __builtin_memcpy(part, codes, static_cast<std::size_t>(at.channels));
    codes = part;
  }
  __m256i packed[2] = {cross(load(codes)), cross(load(codes + kHalf))};
  const __m256i bases[2] = {reader.bases[0], reader.bases[1]};
  Elements escapes = reader.escapes;
  for (int k = 0; k < rows; ++k) {
    fetch(at.rest + at.ahead.rests);
    fetch_to_write<kRows>(at.out + at.ahead.values);
    fetch_to_write<kRows>(at.out + at.ahead.values + 64);
    if constexpr (kRows == Rows::kPart) {
      alignas(32) std::byte values[2 * kTileChannels];
      __builtin_memcpy(part, at.rest, static_cast<std::size_t>(at.channels));
      decode_row<Rows::kFull>(escapes, packed, bases, part, values);
      __builtin_memcpy(at.out, values, 2 * static_cast<std::size_t>(at.channels));
    } else {
      decode_row<kRows>(escapes, packed, bases, at.rest, at.out);
    }
    at.rest += at.row_values;
    at.out += 2 * at.row_values;
    for (__m256i& half : packed) half = _mm256_srli_epi16(half, 2);
  }
  reader.escapes = escapes;
  if (rows == 4) return true;
  // What the shifts brought in from neighbours is above the codes that are left.
  const __m256i left = fill(0xFFU >> 2 * rows);
  return _mm256_testz_si256(packed[0], left) != 0 && _mm256_testz_si256(packed[1], left) != 0;
}

template <Rows kRows>
inline int decode_band(const DecodeBand& band, DecodeScratch& scratch) {
  const int tiles = tile_count(band.channels);
  RowReader readers[kDecodeBandTiles];
  bool good[kDecodeBandTiles];
  const std::byte* base_codes = band.base_codes;
  const std::byte* codes = band.codes;
  const std::byte* tail = band.tails;
  for (int i = 0; i < tiles; ++i) {
    const auto channels = static_cast<std::size_t>(tile_channels(band.channels, i));
    const TileTables& tables = band.tiles[i];
    RowReader& reader = readers[i];
    good[i] = decode_tail(tail, tables.counts, scratch, scratch.elements[i].bytes);
    reader.escapes = {scratch.elements[i].bytes};
    reader.codes = codes;
    good[i] &= decode_layer(base_codes, channels, 0, reader.escapes, scratch.bases[i]);
    for (int h = 0; h < 2; ++h) {
      const __m256i distances = load(scratch.bases[i] + h * kHalf);
      reader.bases[h] = cross(_mm256_sub_epi8(fill(tables.anchor), distances));
    }
    base_codes += packed_bytes(channels);
    codes += packed_bytes(static_cast<std::size_t>(band.rows)) * channels;
    tail += tail_bytes(tables.counts);
  }
  const Ahead ahead{.rests = band.next_sign_mantissa - band.sign_mantissa,
                    .codes = codes - band.codes,
                    .values = 2 * rows_ahead(tiles) * band.row_values};
  for (int r = 0; r < band.rows; r += 4) {
    const int rows = band.rows - r < 4 ? band.rows - r : 4;
    const std::size_t first = static_cast<std::size_t>(r) * band.row_values;
    RowPlace at{.rest = band.sign_mantissa + first,
                .out = band.values + 2 * first,
                .row_values = band.row_values,
                .ahead = ahead,
                .channels = 0};
    for (int i = 0; i < tiles; ++i) {
      at.channels = tile_channels(band.channels, i);
      good[i] &= at.channels == kTileChannels ? decode_rows<kRows>(readers[i], rows, at)
                                              : decode_rows<Rows::kPart>(readers[i], rows, at);
      readers[i].codes += at.channels;
      at.rest += kTileChannels;
      at.out += 2 * kTileChannels;
    }
  }
  for (int i = 0; i < tiles; ++i) {
    const std::ptrdiff_t taken = readers[i].escapes.next - scratch.elements[i].bytes;
    if (!good[i] || taken != band.tiles[i].counts.escapes[0]) return i;
  }
  return tiles;
}

}  // namespace

int decode(const DecodeBand& band, DecodeScratch& scratch) {
  return band.stream ? decode_band<Rows::kStream>(band, scratch)
                     : decode_band<Rows::kFull>(band, scratch);
}

}  // namespace kvlane::channel::avx2
