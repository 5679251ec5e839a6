// The encoder of `splitzip:channel` with AVX2: the way of channel_avx512_bf16.cpp in halves of its
// vectors.
//
// There is no vpcompressb here: escapes are packed eight bytes at a time, by byte shuffles from a
// table with an entry for each set of eight. BMI2 would do without the table, but its pext and pdep
// are slow on some processors that have AVX2. Packing takes two fifths of all instructions
// (lab/channel/README.md).
//
// No inline library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel_avx2.h"

namespace kvlane::channel {
namespace avx2 {
namespace {

// Distances are looked up at distance + kTableOffset, cut at the last entry, which is an escape.
constexpr int kTableOffset = 2;

struct Tables {
  std::uint8_t pack[256][8];  // places of the bits that are set, in order
  std::uint8_t codes[kLayers][16];
};

constexpr Tables make_tables() {
  Tables t{};
  for (int set = 0; set < 256; ++set) {
    int count = 0;
    for (int bit = 0; bit < 8; ++bit) {
      if ((set >> bit & 1) != 0) t.pack[set][count++] = static_cast<std::uint8_t>(bit);
    }
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (std::uint8_t& code : t.codes[layer]) code = kEscape;
    for (unsigned c = 0; c < kEscape; ++c) {
      t.codes[layer][(kSymbols[layer][c] + kTableOffset) & 0xFF] = static_cast<std::uint8_t>(c);
    }
  }
  return t;
}
constexpr Tables kTables = make_tables();

// Splits 32 values: sign and mantissa to `rest_out`, exponents to `exponents`.
template <Rows kRows>
inline void split_half(const std::byte* values, std::byte* rest_out, std::uint8_t* exponents) {
  const __m256i ones = fill(1);
  const __m256i low_bytes = _mm256_set1_epi16(0xFF);
  const __m256i rest_bits = _mm256_set1_epi16(static_cast<short>(0x807F));
  // Values 0 to 7 and 16 to 23, 8 to 15 and 24 to 31: packing two vectors goes by halves.
  const __m256i a =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(values)), load_16(values + 32), 1);
  const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(values + 16)),
                                            load_16(values + 48), 1);
  // A byte pair added up: 128 or 0, and the mantissa.
  const __m256i rest_a = _mm256_maddubs_epi16(_mm256_and_si256(a, rest_bits), ones);
  const __m256i rest_b = _mm256_maddubs_epi16(_mm256_and_si256(b, rest_bits), ones);
  const __m256i exponent_a = _mm256_and_si256(_mm256_srli_epi16(a, 7), low_bytes);
  const __m256i exponent_b = _mm256_and_si256(_mm256_srli_epi16(b, 7), low_bytes);
  put<kRows>(rest_out, _mm256_packus_epi16(rest_a, rest_b));
  store(exponents, _mm256_packus_epi16(exponent_a, exponent_b));
}

using Exponents = std::uint8_t[kTileRows][kTileChannels];

// The row of a tile of fewer channels; exponents of channels that are not there are 0.
inline void split_part(int channels, const std::byte* values, std::byte* rest_out,
                       std::uint8_t* exponents) {
  alignas(32) std::byte in[2 * kTileChannels] = {};
  alignas(32) std::byte rest[kTileChannels];
  __builtin_memcpy(in, values, 2 * static_cast<std::size_t>(channels));
  for (int h = 0; h < kTileChannels; h += kHalf) {
    split_half<Rows::kFull>(in + 2 * h, rest + h, exponents + h);
  }
  __builtin_memcpy(rest_out, rest, static_cast<std::size_t>(channels));
}

// Exponents of missing rows repeat those that there are.
template <Rows kRows>
inline void split_rows(const EncodeBand& band, Exponents* exponents) {
  const int tiles = tile_count(band.channels);
  const int full = band.channels / kTileChannels;
  const std::byte* values = band.values;
  std::byte* rest_out = band.sign_mantissa;
  const std::size_t ahead = rows_ahead(tiles) * band.row_values;
  for (int r = 0; r < band.rows; ++r) {
    for (int i = 0; i < full; ++i) {
      fetch_near(values + 2 * (kTileChannels * i + ahead));
      fetch_near(values + 2 * (kTileChannels * i + ahead) + 64);
      fetch_to_write<kRows>(rest_out + kTileChannels * i + ahead);
      for (int h = 0; h < kTileChannels; h += kHalf) {
        const int first = kTileChannels * i + h;
        split_half<kRows>(values + 2 * first, rest_out + first, exponents[i][r] + h);
      }
    }
    if (full < tiles) {
      split_part(tile_channels(band.channels, full), values + 2 * kTileChannels * full,
                 rest_out + kTileChannels * full, exponents[full][r]);
    }
    values += 2 * band.row_values;
    rest_out += band.row_values;
  }
  for (int r = band.rows; r < kTileRows; ++r) {
    for (int i = 0; i < tiles; ++i) {
      for (int h = 0; h < kTileChannels; h += kHalf) {
        store(exponents[i][r] + h, load(exponents[i][r - band.rows] + h));
      }
    }
  }
}

// The bases of 32 channels.
inline __m256i fold(const Exponents& exponents, int first) {
  const auto row = [&](int r) __attribute__((always_inline)) { return load(exponents[r] + first); };
  const auto eighth = [&](int i) __attribute__((always_inline)) {
    const __m256i a = _mm256_max_epu8(_mm256_max_epu8(row(i), row(i + 32)),
                                      _mm256_max_epu8(row(i + 16), row(i + 48)));
    const __m256i b = _mm256_max_epu8(_mm256_max_epu8(row(i + 8), row(i + 40)),
                                      _mm256_max_epu8(row(i + 24), row(i + 56)));
    return _mm256_min_epu8(a, b);
  };
  __m256i rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = _mm256_max_epu8(eighth(i), eighth(i + 4));
  return _mm256_max_epu8(_mm256_min_epu8(rows[0], rows[2]), _mm256_min_epu8(rows[1], rows[3]));
}

// Lanes where a is at least b.
inline __m256i not_below(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}

// The greatest exponent that a fifth of the bases reaches, bit by bit.
inline unsigned choose_anchor(const __m256i (&bases)[2], int channels) {
  const __m256i there[2] = {lanes_before(channels, 0), lanes_before(channels, kHalf)};
  unsigned anchor = 0;
  for (unsigned bit = 0x80; bit != 0; bit >>= 1) {
    const __m256i v = fill(anchor | bit);
    const unsigned reached =
        count_bits(mask_of(_mm256_and_si256(not_below(bases[0], v), there[0]))) +
        count_bits(mask_of(_mm256_and_si256(not_below(bases[1], v), there[1])));
    anchor = 5 * reached >= static_cast<unsigned>(channels) ? anchor | bit : anchor;
  }
  return anchor;
}

// Appends the bytes of 32 at `bytes` that `mask` says; returns where the next goes. Writes up to
// eight bytes too many.
inline std::uint8_t* append(std::uint32_t mask, const std::uint8_t* bytes, std::uint8_t* to) {
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t some = mask >> 8 * i & 0xFF;
    const __m128i packed = _mm_shuffle_epi8(load_8(bytes + 8 * i), load_8(kTables.pack[some]));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), packed);
    to += count_bits(some);
  }
  return to;
}

// Layer-1 codes of the bases; what escapes goes before `next`. Returns how many.
inline std::size_t encode_bases(int channels, const __m256i (&bases)[2], unsigned anchor,
                                std::uint8_t* next, std::byte* out) {
  const __m256i three = fill(kEscape);
  alignas(32) std::uint8_t distances[kTileChannels];
  alignas(32) std::uint8_t sequence[2 * kTileChannels] = {};
  // Escapes of up to 64 bases behind as many bytes of which nothing is used.
  alignas(32) std::uint8_t escapes[2 * kTileChannels + 8] = {};
  std::uint8_t* end = escapes + kTileChannels;
  for (int h = 0; h < 2; ++h) {
    const __m256i there = lanes_before(channels, h * kHalf);
    const __m256i distance = _mm256_sub_epi8(fill(anchor), bases[h]);
    const __m256i codes = _mm256_and_si256(_mm256_min_epu8(distance, three), there);
    store(distances + h * kHalf, distance);
    store(sequence + h * kHalf, codes);
    end = append(mask_of(_mm256_cmpeq_epi8(codes, three)), distances + h * kHalf, end);
  }
  const auto count = static_cast<std::size_t>(end - escapes) - kTileChannels;
  for (int h = 0; h < kTileChannels; h += kHalf) {
    store(next - kTileChannels + h, load(escapes + count + h));
  }
  const std::size_t bytes = packed_bytes(static_cast<std::size_t>(channels));
  const auto part = [&](std::size_t k) { return load_16(sequence + k * bytes); };
  const __m128i low = _mm_or_si128(part(0), _mm_slli_epi16(part(1), 2));
  const __m128i high = _mm_or_si128(part(2), _mm_slli_epi16(part(3), 2));
  alignas(16) std::byte packed[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(packed), _mm_or_si128(low, _mm_slli_epi16(high, 4)));
  __builtin_memcpy(out, packed, bytes);
  return count;
}

// Parts of one tile of a band.
struct Tile {
  int rows;
  int channels;
  const std::byte* next_values;  // to be fetched, and the bytes from row to row there
  std::size_t row_bytes;         // 0: nothing is to be fetched
};

// Codes of the rows; what escapes goes to `next`. Returns how many. Exponents become distances.
template <Rows kRows>
inline std::size_t encode_rows(const Tile& tile, const __m256i (&bases)[2], Exponents& exponents,
                               std::byte* codes, std::uint8_t* next) {
  const __m256i three = fill(kEscape);
  const __m256i left = bases[0];
  const __m256i right = bases[1];
  const std::byte* ahead = tile.next_values;
  std::uint8_t* end = next;
  const auto code = [&](std::uint8_t * at, __m256i base) __attribute__((always_inline)) {
    const __m256i distance = _mm256_sub_epi8(base, load(at));
    const __m256i codes_of = _mm256_min_epu8(distance, three);
    store(at, distance);
    end = append(mask_of(_mm256_cmpeq_epi8(codes_of, three)), at, end);
    return codes_of;
  };
  for (int r = 0; r < tile.rows; r += 4) {
    __m256i low = _mm256_setzero_si256();
    __m256i high = _mm256_setzero_si256();
    const int there = tile.rows - r < 4 ? tile.rows - r : 4;
    const auto row = [&](int k) __attribute__((always_inline)) {
      if (k >= there) return;
      if (tile.row_bytes != 0) {
        fetch(ahead);
        fetch(ahead + 64);
        ahead += tile.row_bytes;
      }
      low = _mm256_or_si256(low, _mm256_slli_epi16(code(exponents[r + k], left), 2 * k));
      high = _mm256_or_si256(high, _mm256_slli_epi16(code(exponents[r + k] + kHalf, right), 2 * k));
    };
    row(0);
    row(1);
    row(2);
    row(3);
    if constexpr (kRows == Rows::kPart) {
      alignas(32) std::byte all[kTileChannels];
      store(all, low);
      store(all + kHalf, high);
      __builtin_memcpy(codes, all, static_cast<std::size_t>(tile.channels));
      codes += tile.channels;
    } else {
      put<kRows>(codes, low);
      put<kRows>(codes + kHalf, high);
      codes += kTileChannels;
    }
  }
  return static_cast<std::size_t>(end - next);
}

// Codes of the up to 256 elements of one group, packed to `bytes` bytes; 64 are written. Returns
// where the next escape goes.
template <bool kFull>
inline std::uint8_t* encode_group(const std::uint8_t* layer, int count, int bytes, __m256i table,
                                  std::byte* out, std::uint8_t* next) {
  const __m256i three = fill(kEscape);
  const __m256i offset = fill(kTableOffset);
  const __m256i last = fill(15);
  __m256i packed[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int k = 0; k < 4; ++k) {
    const int left = count - k * bytes;
    const int there = left < bytes ? left : bytes;
    for (int h = 0; h < 2; ++h) {
      packed[h] = _mm256_srli_epi16(packed[h], 2);
      if (!kFull && there <= h * kHalf) continue;
      const std::uint8_t* const distances = layer + k * bytes + h * kHalf;
      const __m256i place = _mm256_min_epu8(_mm256_add_epi8(load(distances), offset), last);
      __m256i codes = _mm256_shuffle_epi8(table, place);
      if constexpr (!kFull) codes = _mm256_and_si256(codes, lanes_before(there, h * kHalf));
      next = append(mask_of(_mm256_cmpeq_epi8(codes, three)), distances, next);
      packed[h] = _mm256_or_si256(packed[h], _mm256_slli_epi16(codes, 6));
    }
  }
  store(out, packed[0]);
  store(out + kHalf, packed[1]);
  return next;
}

// Codes of the `count` elements of a layer, packed; returns how many escaped to `next`.
inline std::size_t encode_layer(const std::uint8_t* layer, std::size_t count, int index,
                                std::byte* out, std::uint8_t* next) {
  const __m256i table = load_both(kTables.codes[index]);
  std::uint8_t* end = next;
  for (; count >= kGroupCodes; count -= kGroupCodes) {
    end = encode_group<true>(layer, kGroupCodes, kTileChannels, table, out, end);
    layer += kGroupCodes;
    out += kTileChannels;
  }
  if (count != 0) {
    end = encode_group<false>(layer, static_cast<int>(count), static_cast<int>(packed_bytes(count)),
                              table, out, end);
  }
  return static_cast<std::size_t>(end - next);
}

// One tile whose exponents are split off; returns the end of its tail.
template <Rows kRows>
inline std::byte* encode_tile(const Tile& tile, Exponents& exponents, std::byte* base_codes,
                              std::byte* codes, EncodeScratch& scratch, std::byte* tail,
                              TileTables& tables) {
  const __m256i bases[2] = {fold(exponents, 0), fold(exponents, kHalf)};
  // Rows before bases, as in channel_avx512_bf16.cpp.
  std::uint8_t* const from_rows = scratch.layers[0].bytes + kTileChannels;
  std::size_t count = encode_rows<kRows>(tile, bases, exponents, codes, from_rows);
  const unsigned anchor = choose_anchor(bases, tile.channels);
  const std::size_t from_bases = encode_bases(tile.channels, bases, anchor, from_rows, base_codes);
  count += from_bases;
  tables.anchor = static_cast<std::uint8_t>(anchor);
  const std::uint8_t* elements = from_rows - from_bases;
  for (int layer = 1; layer < kLayers; ++layer) {
    tables.counts.escapes[layer - 1] = static_cast<std::uint16_t>(count);
    std::uint8_t* const next = scratch.layers[layer].bytes;
    const std::size_t escapes = encode_layer(elements, count, layer, tail, next);
    tail += packed_bytes(count);
    elements = next;
    count = escapes;
  }
  tables.counts.escapes[kLayers - 1] = static_cast<std::uint16_t>(count);
  for (std::size_t i = 0; i < count; i += kHalf) store(tail + i, load(elements + i));
  return tail + count;
}

template <Rows kRows>
inline void encode_band(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables) {
  split_rows<kRows>(band, scratch.exponents);
  std::byte* base_codes = band.base_codes;
  std::byte* codes = band.codes;
  std::byte* tail = scratch.tails;
  // As in channel_avx512_bf16.cpp: for bands of whole rows split_rows() fetches enough.
  const bool whole = band.row_values == static_cast<std::size_t>(band.channels);
  const std::size_t row_bytes = whole ? 0 : 2 * band.row_values;
  for (int i = 0; i < tile_count(band.channels); ++i) {
    const Tile tile{band.rows, tile_channels(band.channels, i),
                    band.next_values + 2 * kTileChannels * i, row_bytes};
    tail = tile.channels == kTileChannels
               ? encode_tile<kRows>(tile, scratch.exponents[i], base_codes, codes, scratch, tail,
                                    tables[i])
               : encode_tile<Rows::kPart>(tile, scratch.exponents[i], base_codes, codes, scratch,
                                          tail, tables[i]);
    base_codes += packed_bytes(static_cast<std::size_t>(tile.channels));
    codes +=
        packed_bytes(static_cast<std::size_t>(band.rows)) * static_cast<std::size_t>(tile.channels);
  }
}

}  // namespace

void encode(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables) {
  if (band.stream) {
    encode_band<Rows::kStream>(band, scratch, tables);
  } else {
    encode_band<Rows::kFull>(band, scratch, tables);
  }
}

}  // namespace avx2

const Kernels kAvx2Kernels = {avx2::encode, avx2::decode, [] { _mm_sfence(); }};

}  // namespace kvlane::channel
