// One tile of `splitzip:channel`: what the kernels of all instruction sets have in common. Terms
// and layout are those of spec/splitzip_channel.md, sections 1 to 3.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace kvlane::channel {

// Part of the format, as is kSymbols.
inline constexpr int kTileRows = 64;
inline constexpr int kTileChannels = 64;
inline constexpr int kLayers = 4;
inline constexpr unsigned kEscape = 3;  // the code that sends a value to the next layer

// The distances that codes 0, 1 and 2 of each layer stand for, modulo 256.
inline constexpr std::uint8_t kSymbols[kLayers][kEscape] = {
    {0, 1, 2},
    {3, 255, 4},
    {5, 254, 6},
    {7, 8, 9},
};

// Elements of layers 2, 3 and 4, and raw bytes behind them: what escaped from layers 1 to 4.
struct TileCounts {
  std::uint16_t escapes[kLayers];
};
static_assert(sizeof(TileCounts) == 8);

// The most elements a layer can have: every base and every value of a tile.
inline constexpr std::size_t kLayerElementsMax = (kTileRows + 1) * kTileChannels;

// Functions of this header have a copy in every file that includes it: were they shared, the linker
// might keep the one that was compiled for AVX-512.
static constexpr std::size_t packed_bytes(std::size_t codes) { return (codes + 3) / 4; }

// Layers 2 to 4 are packed in groups of 256 codes of which the last may be shorter: the bytes that
// the group of `left` codes or more takes, which is also how far apart the codes of a byte are.
inline constexpr std::size_t kGroupCodes = 256;
static constexpr std::size_t group_bytes(std::size_t left) {
  return packed_bytes(left < kGroupCodes ? left : kGroupCodes);
}

static constexpr std::size_t tail_bytes(const TileCounts& counts) {
  std::size_t bytes = counts.escapes[kLayers - 1];
  for (int layer = 1; layer < kLayers; ++layer) bytes += packed_bytes(counts.escapes[layer - 1]);
  return bytes;
}
inline constexpr std::size_t kTailBytesMax =
    (kLayers - 1) * packed_bytes(kLayerElementsMax) + kLayerElementsMax;

// Where vectors may write or read beyond what is meant.
inline constexpr std::size_t kSlackBytes = 64;

// Working memory of a kernel, on the stack of its caller. Contents mean nothing between calls, but
// for what encode leaves in `tail`.
struct TileScratch {
  alignas(64) std::uint8_t exponents[kTileRows][kTileChannels];
  // Distances: elements of layers 2 to 4, then raw bytes.
  std::uint8_t layers[kLayers][kLayerElementsMax + kSlackBytes];
  std::byte tail[kTailBytesMax + kSlackBytes];
};

// Parts of a plane and of its body that belong to one tile. No pointer needs an alignment, but all
// that `stream` writes to.
struct EncodeTile {
  int rows;                 // 1 ... 64
  int channels;             // 1 ... 64
  std::size_t row_values;   // from one row to the next, in `values` and `sign_mantissa`
  const std::byte* values;  // [rows][row_values], BF16
  // Where the next tile begins, to have it fetched; it need not be there, and is not read.
  const std::byte* next_values;
  std::byte* base_codes;     // packed_bytes(channels)
  std::byte* codes;          // packed_bytes(rows) * channels
  std::byte* sign_mantissa;  // [rows][row_values]
  // Stores to `codes` and `sign_mantissa` go around the caches. Only for 64 channels and multiples
  // of 64 in both addresses and in row_values.
  bool stream;
};
struct EncodedTile {
  TileCounts counts;
  std::uint8_t anchor;
};

struct DecodeTile {
  int rows;
  int channels;
  std::size_t row_values;
  std::byte* values;
  const std::byte* base_codes;
  const std::byte* codes;
  const std::byte* sign_mantissa;
  const std::byte* tail;  // tail_bytes(counts)
  // Untrusted, but none above the one before it, and the first at most (rows + 1) * channels.
  TileCounts counts;
  std::uint8_t anchor;
  bool stream;  // stores to `values` go around the caches; the same conditions
};

// All kernels give the same bytes and the same verdicts.
struct Kernels {
  // Writes the tile's parts of the body; its tail is left in scratch.tail.
  EncodedTile (*encode)(const EncodeTile& tile, TileScratch& scratch);
  // Fills `values`. False when the codes do not have the escapes that `counts` says, or bits are
  // set behind them; then `values` holds garbage.
  bool (*decode)(const DecodeTile& tile, TileScratch& scratch);
  // After the last tile that was written with `stream`.
  void (*finish_stream)();
};

const Kernels& kernels(Isa isa);
extern const Kernels kScalarKernels;
extern const Kernels kAvx512Kernels;

}  // namespace kvlane::channel
