// Tiles of `splitzip:channel` in scalar code: the normative kernels, which all others must equal.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "codec/channel_tile.h"

namespace kvlane::channel {
namespace {

std::uint16_t load_value(const std::byte* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

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

using Column = std::array<std::uint8_t, kTileRows>;

// Folds a column six times: rows of the second half over those of the first.
std::uint8_t fold(Column& column) {
  constexpr std::array kKeepsGreater = {true, true, false, true, false, true};
  int half = kTileRows;
  for (const bool greater : kKeepsGreater) {
    half /= 2;
    for (int i = 0; i < half; ++i) {
      const std::uint8_t other = column[i + half];
      column[i] = greater ? std::max(column[i], other) : std::min(column[i], other);
    }
  }
  return column[0];
}

// The greatest exponent that at least a fifth of the bases reaches.
std::uint8_t choose_anchor(const std::uint8_t* bases, int channels) {
  std::array<int, 256> counts{};
  for (int c = 0; c < channels; ++c) ++counts[bases[c]];
  int anchor = 255;
  for (int reached = counts[anchor]; 5 * reached < channels; reached += counts[anchor]) --anchor;
  return static_cast<std::uint8_t>(anchor);
}

// Appends the distances that a layer cannot say to the elements of the next.
struct EscapeList {
  std::uint8_t* next;
  std::size_t count = 0;
  void append(std::uint8_t distance) { next[count++] = distance; }
};

// Writes packed_bytes(elements.size()) bytes.
void encode_packed(const std::uint8_t* distances, std::size_t count, const CodeTable& codes,
                   std::byte* out, EscapeList& escapes) {
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t length = std::min(kGroupCodes, count - first);
    const std::size_t bytes = group_bytes(length);
    std::memset(out, 0, bytes);
    for (std::size_t i = 0; i < length; ++i) {
      const std::uint8_t distance = distances[first + i];
      const unsigned code = codes[distance];
      out[i % bytes] |= std::byte(code << 2 * (i / bytes));
      if (code == kEscape) escapes.append(distance);
    }
    out += bytes;
  }
}

// Splits values; exponents of missing rows repeat those that there are.
void split(const EncodeTile& tile, std::uint8_t (*exponents)[kTileChannels]) {
  for (int r = 0; r < kTileRows; ++r) {
    const std::size_t row = (r % tile.rows) * tile.row_values;
    for (int c = 0; c < tile.channels; ++c) {
      const unsigned value = load_value(tile.values + 2 * (row + c));
      exponents[r][c] = static_cast<std::uint8_t>(value >> 7 & 0xFFU);
      if (r < tile.rows) {
        tile.sign_mantissa[row + c] = std::byte((value >> 8 & 0x80U) | (value & 0x7FU));
      }
    }
  }
}

EncodedTile encode(const EncodeTile& tile, TileScratch& scratch) {
  split(tile, scratch.exponents);
  std::array<std::uint8_t, kTileChannels> bases{};
  for (int c = 0; c < tile.channels; ++c) {
    Column column;
    for (int r = 0; r < kTileRows; ++r) column[r] = scratch.exponents[r][c];
    bases[c] = fold(column);
  }
  EncodedTile encoded{};
  encoded.anchor = choose_anchor(bases.data(), tile.channels);

  EscapeList escapes{scratch.layers[0]};
  std::array<std::uint8_t, kTileChannels> base_distances{};
  for (int c = 0; c < tile.channels; ++c) {
    base_distances[c] = static_cast<std::uint8_t>(encoded.anchor - bases[c]);
  }
  encode_packed(base_distances.data(), tile.channels, kCodes[0], tile.base_codes, escapes);
  for (int r = 0; r < tile.rows; ++r) {
    std::byte* const codes = tile.codes + r / 4 * tile.channels;
    if (r % 4 == 0) std::memset(codes, 0, tile.channels);
    for (int c = 0; c < tile.channels; ++c) {
      const auto distance = static_cast<std::uint8_t>(bases[c] - scratch.exponents[r][c]);
      const unsigned code = kCodes[0][distance];
      codes[c] |= std::byte(code << 2 * (r % 4));
      if (code == kEscape) escapes.append(distance);
    }
  }

  std::byte* tail = scratch.tail;
  for (int layer = 1; layer < kLayers; ++layer) {
    const std::size_t count = escapes.count;
    encoded.counts.escapes[layer - 1] = static_cast<std::uint16_t>(count);
    escapes = {scratch.layers[layer]};
    encode_packed(scratch.layers[layer - 1], count, kCodes[layer], tail, escapes);
    tail += packed_bytes(count);
  }
  encoded.counts.escapes[kLayers - 1] = static_cast<std::uint16_t>(escapes.count);
  std::memcpy(tail, scratch.layers[kLayers - 1], escapes.count);
  return encoded;
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// Hands out the elements of a layer one by one, and counts what was asked for beyond them.
class Elements {
 public:
  Elements(const std::uint8_t* elements, std::size_t count) : elements_(elements), count_(count) {}
  std::uint8_t next() {
    const std::size_t i = taken_++;
    return i < count_ ? elements_[i] : std::uint8_t{0};
  }
  bool used_up() const { return taken_ == count_; }

 private:
  const std::uint8_t* elements_;
  std::size_t count_;
  std::size_t taken_ = 0;
};

std::uint8_t distance_of(unsigned code, int layer, Elements& escapes) {
  return code == kEscape ? escapes.next() : kSymbols[layer][code];
}

// Reads packed_bytes(count) bytes. False when bits behind the codes are set.
bool decode_packed(const std::byte* in, std::size_t count, int layer, Elements& escapes,
                   std::uint8_t* distances) {
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t length = std::min(kGroupCodes, count - first);
    const std::size_t bytes = group_bytes(length);
    for (std::size_t i = 0; i < 4 * bytes; ++i) {
      const unsigned code = std::to_integer<unsigned>(in[i % bytes]) >> 2 * (i / bytes) & 3U;
      if (i < length) {
        distances[first + i] = distance_of(code, layer, escapes);
      } else if (code != 0) {
        return false;
      }
    }
    in += bytes;
  }
  return true;
}

void join_row(const DecodeTile& tile, int row, const std::uint8_t* bases, Elements& escapes) {
  const std::size_t first = row * tile.row_values;
  const std::byte* const codes = tile.codes + row / 4 * tile.channels;
  for (int c = 0; c < tile.channels; ++c) {
    const unsigned code = std::to_integer<unsigned>(codes[c]) >> 2 * (row % 4) & 3U;
    const unsigned exponent = (bases[c] - distance_of(code, 0, escapes)) & 0xFFU;
    const auto rest = std::to_integer<unsigned>(tile.sign_mantissa[first + c]);
    const auto value =
        static_cast<std::uint16_t>((rest & 0x80U) << 8 | exponent << 7 | (rest & 0x7FU));
    std::memcpy(tile.values + 2 * (first + c), &value, sizeof(value));
  }
}

bool decode(const DecodeTile& tile, TileScratch& scratch) {
  std::array<const std::byte*, kLayers> parts;  // of layers 2 to 4; then the raw bytes
  parts[0] = tile.tail;
  for (int layer = 1; layer < kLayers; ++layer) {
    parts[layer] = parts[layer - 1] + packed_bytes(tile.counts.escapes[layer - 1]);
  }
  std::memcpy(scratch.layers[kLayers - 1], parts[kLayers - 1], tile.counts.escapes[kLayers - 1]);
  for (int layer = kLayers - 1; layer > 0; --layer) {
    Elements escapes(scratch.layers[layer], tile.counts.escapes[layer]);
    if (!decode_packed(parts[layer - 1], tile.counts.escapes[layer - 1], layer, escapes,
                       scratch.layers[layer - 1]) ||
        !escapes.used_up()) {
      return false;
    }
  }

  Elements escapes(scratch.layers[0], tile.counts.escapes[0]);
  std::array<std::uint8_t, kTileChannels> bases{};
  if (!decode_packed(tile.base_codes, tile.channels, 0, escapes, bases.data())) return false;
  for (std::uint8_t& base : bases) base = static_cast<std::uint8_t>(tile.anchor - base);
  for (int r = 0; r < tile.rows; ++r) join_row(tile, r, bases.data(), escapes);
  if (tile.rows % 4 != 0) {
    const std::byte* const last = tile.codes + tile.rows / 4 * tile.channels;
    for (int c = 0; c < tile.channels; ++c) {
      if (std::to_integer<unsigned>(last[c]) >> 2 * (tile.rows % 4) != 0) return false;
    }
  }
  return escapes.used_up();
}

}  // namespace

const Kernels kScalarKernels = {encode, decode, [] {}};

}  // namespace kvlane::channel
