// The tiles of `splitzip:channel`: what the kernels of all instruction sets have in common. Terms
// and layout are those of spec/splitzip_channel.md, sections 1 to 3.
//
// Kernels work on a band: some tiles side by side, so that a row of them is read and written as one
// piece. In planes with longer rows memory minds single tiles.
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

// The tiles of a band and the channels of the i-th.
static constexpr int tile_count(int channels) {
  return (channels + kTileChannels - 1) / kTileChannels;
}
static constexpr int tile_channels(int channels, int i) {
  const int left = channels - i * kTileChannels;
  return left < kTileChannels ? left : kTileChannels;
}

// Where vectors may write or read beyond what is meant.
inline constexpr std::size_t kSlackBytes = 64;

// Bands are no part of the format. Wider ones make encoders lose more in the first-level cache than
// they gain in memory (lab/channel/README.md).
inline constexpr int kEncodeBandTiles = 4;
inline constexpr int kDecodeBandTiles = 8;

// How many rows ahead kernels fetch the lines they will write, as stores to lines that are not in a
// cache stop all that come behind them (those that go around the caches do not), and the encoders
// the values. Further, what is fetched would drive out what is worked on; nearer, it would come
// late.
static constexpr std::size_t rows_ahead(int tiles) { return 16 / static_cast<std::size_t>(tiles); }

// The elements of a layer, with room before them for what escapes from bases.
struct LayerScratch {
  std::uint8_t bytes[kTileChannels + kLayerElementsMax + kSlackBytes];
};

// Working memory of kernels, on the stack of their caller. Contents mean nothing between calls, but
// for what encode leaves in `tails`.
struct EncodeScratch {
  alignas(64) std::uint8_t exponents[kEncodeBandTiles][kTileRows][kTileChannels];
  LayerScratch layers[kLayers];  // 2, 3 and 4, and raw bytes
  std::byte tails[kEncodeBandTiles * kTailBytesMax + kSlackBytes];
};
struct DecodeScratch {
  alignas(64) std::uint8_t bases[kDecodeBandTiles][kTileChannels + kSlackBytes];
  LayerScratch elements[kDecodeBandTiles];  // of layer 2
  LayerScratch layers[kLayers - 1];         // 3 and 4, and raw bytes
};

// Parts of a plane and of its body that belong to the tiles of one band. No pointer needs an
// alignment, but all that `stream` writes to.
struct EncodeBand {
  int rows;                 // 1 ... 64
  int channels;             // 1 ... kEncodeBandTiles * 64
  std::size_t row_values;   // from one row to the next, in `values` and `sign_mantissa`
  const std::byte* values;  // [rows][row_values], BF16
  // Where the next band begins, to have it fetched; it need not be there, and is not read.
  const std::byte* next_values;
  std::byte* base_codes;     // tile after tile
  std::byte* codes;          // tile after tile
  std::byte* sign_mantissa;  // [rows][row_values]
  // Stores to `codes` and `sign_mantissa` go around the caches. Only for multiples of 64 in
  // `channels`, `row_values` and both addresses.
  bool stream;
};

// What the tables of a body say of a tile.
struct TileTables {
  TileCounts counts;
  std::uint8_t anchor;
};

struct DecodeBand {
  int rows;
  int channels;
  std::size_t row_values;
  std::byte* values;
  const std::byte* base_codes;
  const std::byte* codes;
  const std::byte* sign_mantissa;
  const std::byte* next_sign_mantissa;  // as next_values above
  const std::byte* tails;               // of tail_bytes(counts) each
  // Untrusted, but no count is above the one before it, and the first at most (rows + 1) * channels
  // of its tile.
  TileTables tiles[kDecodeBandTiles];
  bool stream;  // stores to `values` go around the caches; the same conditions
};

// All kernels give the same bytes and the same verdicts.
struct Kernels {
  // Writes the band's parts of the body and one entry of `tables` a tile; leaves the tiles' tails,
  // one after another, in scratch.tails.
  void (*encode)(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables);
  // Fills `values`. Returns how many tiles there are, or the index of the first whose codes do not
  // have the escapes that its counts say, or have bits set behind them; then `values` holds
  // garbage.
  int (*decode)(const DecodeBand& band, DecodeScratch& scratch);
  // After the last band that was written with `stream`.
  void (*finish_stream)();
};

const Kernels& kernels(Isa isa);
extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Bf16Kernels;

}  // namespace kvlane::channel
