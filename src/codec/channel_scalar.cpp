// Tiles of `splitzip:channel` in scalar code: the normative kernels, which all others must equal.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "codec/channel_kernels.h"

namespace kvlane::channel {
namespace {

std::uint16_t load_value(const std::byte* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// 1 for the escape among codes, else 0, in a way that compilers make no branch of: a processor
// would guess wrong for every fourth value.
constexpr unsigned is_escape(unsigned code) { return (code + 1) >> 2; }
static_assert(is_escape(kEscape) == 1 && is_escape(kEscape - 1) == 0);

using Row = std::uint8_t[kTileChannels];
using CodeTable = std::array<std::uint8_t, 256>;

constexpr CodeTable invert(const std::uint8_t (&symbols)[kEscape]) {
  CodeTable codes{};
  codes.fill(kEscape);
  for (unsigned c = 0; c < kEscape; ++c) codes[symbols[c]] = static_cast<std::uint8_t>(c);
  return codes;
}
constexpr std::array<CodeTable, kLayers> kCodes = {invert(kSymbols[0]), invert(kSymbols[1]),
                                                   invert(kSymbols[2]), invert(kSymbols[3])};

// ------------------------------------------------------------------------------------------------
// Encoder.

// Folds columns six times: rows of the second half over those of the first. All loops over
// channels have no choice to make, so that compilers find vectors in them.
void fold(const Row* exponents, std::uint8_t* bases) {
  constexpr std::array kKeepsGreater = {true, true, false, true, false, true};
  Row rows[kTileRows];
  std::memcpy(rows, exponents, sizeof(rows));
  int half = kTileRows;
  for (const bool greater : kKeepsGreater) {
    half /= 2;
    for (int i = 0; i < half; ++i) {
      for (int c = 0; c < kTileChannels; ++c) {
        const std::uint8_t a = rows[i][c];
        const std::uint8_t b = rows[i + half][c];
        rows[i][c] = greater ? std::max(a, b) : std::min(a, b);
      }
    }
  }
  std::memcpy(bases, rows[0], sizeof(Row));
}

// The greatest exponent that at least a fifth of the bases reaches.
std::uint8_t choose_anchor(const std::uint8_t* bases, int channels) {
  std::array<int, 256> counts{};
  for (int c = 0; c < channels; ++c) ++counts[bases[c]];
  int anchor = 255;
  for (int reached = counts[anchor]; 5 * reached < channels; reached += counts[anchor]) --anchor;
  return static_cast<std::uint8_t>(anchor);
}

// Appends the distances whose code is the escape to `next`, which has `count` elements; returns how
// many it has then. There is room for one more than a layer can have.
std::size_t append_escapes(const std::uint8_t* distances, const std::uint8_t* codes,
                           std::size_t length, std::uint8_t* next, std::size_t count) {
  for (std::size_t i = 0; i < length; ++i) {
    next[count] = distances[i];
    count += is_escape(codes[i]);
  }
  return count;
}

// Writes packed_bytes(count) bytes; escapes as append_escapes().
std::size_t encode_packed(const std::uint8_t* distances, std::size_t count, int layer,
                          std::byte* out, std::uint8_t* next, std::size_t escapes) {
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t length = std::min(kGroupCodes, count - first);
    const std::size_t bytes = group_bytes(length);
    std::array<std::uint8_t, kGroupCodes + 3> codes{};  // up to three that are not there
    for (std::size_t i = 0; i < length; ++i) codes[i] = kCodes[layer][distances[first + i]];
    for (std::size_t j = 0; j < bytes; ++j) {
      out[j] = std::byte(codes[j] | codes[j + bytes] << 2 | codes[j + 2 * bytes] << 4 |
                         codes[j + 3 * bytes] << 6);
    }
    escapes = append_escapes(distances + first, codes.data(), length, next, escapes);
    out += bytes;
  }
  return escapes;
}

// One tile of a band.
struct Tile {
  int rows;
  int channels;
  std::size_t row_values;
};

// Splits values; exponents of missing rows repeat those that there are.
void split(const Tile& tile, const std::byte* values, std::byte* sign_mantissa, Row* exponents) {
  for (int r = 0; r < tile.rows; ++r) {
    for (int c = 0; c < tile.channels; ++c) {
      const unsigned value = load_value(values + 2 * c);
      exponents[r][c] = static_cast<std::uint8_t>(value >> 7);
      sign_mantissa[c] = std::byte((value >> 8 & 0x80U) | (value & 0x7FU));
    }
    std::fill(exponents[r] + tile.channels, exponents[r] + kTileChannels, std::uint8_t{0});
    values += 2 * tile.row_values;
    sign_mantissa += tile.row_values;
  }
  for (int r = tile.rows; r < kTileRows; ++r) {
    std::memcpy(exponents[r], exponents[r - tile.rows], sizeof(Row));
  }
}

// Codes of the rows; escapes as append_escapes().
std::size_t encode_rows(const Tile& tile, const Row* exponents, const std::uint8_t* bases,
                        std::byte* out, std::uint8_t* next, std::size_t escapes) {
  for (int r = 0; r < tile.rows; r += 4) {
    Row packed{};
    for (int k = 0; k < std::min(4, tile.rows - r); ++k) {
      Row distances;
      Row codes;
      for (int c = 0; c < kTileChannels; ++c) {
        distances[c] = static_cast<std::uint8_t>(bases[c] - exponents[r + k][c]);
        codes[c] = std::min(distances[c], static_cast<std::uint8_t>(kEscape));
        packed[c] = static_cast<std::uint8_t>(packed[c] | codes[c] << 2 * k);
      }
      escapes = append_escapes(distances, codes, tile.channels, next, escapes);
    }
    std::memcpy(out + r / 4 * tile.channels, packed, tile.channels);
  }
  return escapes;
}

// Layers 2 to 4 and raw bytes, from `count` elements of layer 2; returns the tail's end.
std::byte* encode_tail(const std::uint8_t* elements, std::size_t count, EncodeScratch& scratch,
                       std::byte* tail, TileCounts& counts) {
  for (int layer = 1; layer < kLayers; ++layer) {
    counts.escapes[layer - 1] = static_cast<std::uint16_t>(count);
    std::uint8_t* const next = scratch.layers[layer].bytes;
    const std::size_t escapes = encode_packed(elements, count, layer, tail, next, 0);
    tail += packed_bytes(count);
    elements = next;
    count = escapes;
  }
  counts.escapes[kLayers - 1] = static_cast<std::uint16_t>(count);
  std::memcpy(tail, elements, count);
  return tail + count;
}

void encode(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables) {
  std::byte* base_codes = band.base_codes;
  std::byte* codes = band.codes;
  std::byte* tail = scratch.tails;
  for (int i = 0; i < tile_count(band.channels); ++i) {
    const Tile tile{band.rows, tile_channels(band.channels, i), band.row_values};
    const std::size_t first = std::size_t(i) * kTileChannels;
    Row* const exponents = scratch.exponents[i];
    split(tile, band.values + 2 * first, band.sign_mantissa + first, exponents);
    Row bases;
    fold(exponents, bases);
    tables[i].anchor = choose_anchor(bases, tile.channels);
    Row distances;
    for (int c = 0; c < kTileChannels; ++c) {
      distances[c] = static_cast<std::uint8_t>(tables[i].anchor - bases[c]);
    }
    std::uint8_t* const elements = scratch.layers[0].bytes;
    std::size_t escapes = encode_packed(distances, tile.channels, 0, base_codes, elements, 0);
    escapes = encode_rows(tile, exponents, bases, codes, elements, escapes);
    tail = encode_tail(elements, escapes, scratch, tail, tables[i].counts);
    base_codes += packed_bytes(tile.channels);
    codes += packed_bytes(tile.rows) * tile.channels;
  }
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// The next elements of a layer replace the symbols whose code is the escape. `taken` may run past
// what there is, but never past the scratch: no layer has more codes than the next has room.
struct Elements {
  const std::uint8_t* elements;
  std::size_t taken = 0;

  void replace(const std::uint8_t* codes, std::size_t length, std::uint8_t* symbols) {
    const std::uint8_t* next = elements + taken;
    for (std::size_t i = 0; i < length; ++i) {
      const unsigned escaped = is_escape(codes[i]);
      symbols[i] = static_cast<std::uint8_t>((*next & -escaped) | (symbols[i] & (escaped - 1)));
      next += escaped;
    }
    taken = static_cast<std::size_t>(next - elements);
  }
};

// Reads packed_bytes(count) bytes. False when bits behind the codes are set.
bool decode_packed(const std::byte* in, std::size_t count, int layer, Elements& escapes,
                   std::uint8_t* distances) {
  const std::uint8_t symbols[] = {kSymbols[layer][0], kSymbols[layer][1], kSymbols[layer][2], 0};
  unsigned behind = 0;
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t length = std::min(kGroupCodes, count - first);
    const std::size_t bytes = group_bytes(length);
    std::array<std::uint8_t, kGroupCodes + 3> codes;
    for (std::size_t j = 0; j < bytes; ++j) {
      const auto packed = std::to_integer<unsigned>(in[j]);
      for (std::size_t k = 0; k < 4; ++k) {
        codes[j + k * bytes] = static_cast<std::uint8_t>(packed >> 2 * k & 3U);
      }
    }
    for (std::size_t i = length; i < 4 * bytes; ++i) behind |= codes[i];
    for (std::size_t i = 0; i < length; ++i) distances[first + i] = symbols[codes[i]];
    escapes.replace(codes.data(), length, distances + first);
    in += bytes;
  }
  return behind == 0;
}

// One row of values; its codes are at `shift` of the bytes at `packed`.
void decode_row(int channels, const std::byte* packed, int shift, const std::byte* sign_mantissa,
                const Row& bases, Elements& escapes, std::byte* values) {
  Row codes;
  Row distances;
  for (int c = 0; c < channels; ++c) {
    codes[c] = std::to_integer<std::uint8_t>(packed[c] >> shift & std::byte{3});
    distances[c] = codes[c];
  }
  escapes.replace(codes, channels, distances);
  for (int c = 0; c < channels; ++c) {
    const unsigned exponent = (bases[c] - unsigned{distances[c]}) & 0xFFU;
    const auto rest = std::to_integer<unsigned>(sign_mantissa[c]);
    const auto value =
        static_cast<std::uint16_t>((rest & 0x80U) << 8 | exponent << 7 | (rest & 0x7FU));
    std::memcpy(values + 2 * c, &value, sizeof(value));
  }
}

// The elements of layer 2, from the raw bytes backwards.
bool decode_tail(const std::byte* tail, const TileCounts& counts, DecodeScratch& scratch,
                 std::uint8_t* elements) {
  const std::byte* parts[kLayers] = {tail};  // of layers 2 to 4; then the raw bytes
  for (int layer = 1; layer < kLayers; ++layer) {
    parts[layer] = parts[layer - 1] + packed_bytes(counts.escapes[layer - 1]);
  }
  std::memcpy(scratch.layers[kLayers - 2].bytes, parts[kLayers - 1], counts.escapes[kLayers - 1]);
  bool good = true;
  for (int layer = kLayers - 1; layer > 0; --layer) {
    Elements escapes{scratch.layers[layer - 1].bytes};
    std::uint8_t* const out = layer > 1 ? scratch.layers[layer - 2].bytes : elements;
    good &= decode_packed(parts[layer - 1], counts.escapes[layer - 1], layer, escapes, out);
    good &= escapes.taken == counts.escapes[layer];
  }
  return good;
}

int decode(const DecodeBand& band, DecodeScratch& scratch) {
  static_assert(kSymbols[0][0] == 0 && kSymbols[0][1] == 1 && kSymbols[0][2] == 2,
                "codes of the first layer are distances");
  const int tiles = tile_count(band.channels);
  const std::byte* base_codes = band.base_codes;
  const std::byte* codes = band.codes;
  const std::byte* tail = band.tails;
  for (int i = 0; i < tiles; ++i) {
    const int channels = tile_channels(band.channels, i);
    const TileTables& tables = band.tiles[i];
    bool good = decode_tail(tail, tables.counts, scratch, scratch.elements[i].bytes);
    Elements escapes{scratch.elements[i].bytes};
    Row bases{};
    good &= decode_packed(base_codes, channels, 0, escapes, bases);
    for (std::uint8_t& base : bases) base = static_cast<std::uint8_t>(tables.anchor - base);
    for (int r = 0; r < band.rows; ++r) {
      const std::size_t first = r * band.row_values + std::size_t(i) * kTileChannels;
      decode_row(channels, codes + r / 4 * channels, 2 * (r % 4), band.sign_mantissa + first, bases,
                 escapes, band.values + 2 * first);
    }
    if (band.rows % 4 != 0) {
      const std::byte* const last = codes + band.rows / 4 * channels;
      for (int c = 0; c < channels; ++c) {
        good &= std::to_integer<unsigned>(last[c]) >> 2 * (band.rows % 4) == 0;
      }
    }
    if (!good || escapes.taken != tables.counts.escapes[0]) return i;
    base_codes += packed_bytes(channels);
    codes += packed_bytes(band.rows) * channels;
    tail += tail_bytes(tables.counts);
  }
  return tiles;
}

}  // namespace

const Kernels kScalarKernels = {encode, decode, [] {}};

}  // namespace kvlane::channel
