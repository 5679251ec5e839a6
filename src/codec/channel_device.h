// `splitzip:channel` for kernels: a block of threads encodes or decodes one plane, a warp a tile.
//
// In a whole tile a thread has eight channels of every fourth row, as bytes in two words: rows fold
// within threads and then between them, and codes of four rows meet in a byte the same way. What
// escapes goes to shared memory in order, and from there through the layers, which replace each
// other in place: none is longer than the one before. Tails of the tiles that are worked on
// together lie one behind another after one barrier. Tiles that are cut short go a channel at a
// time. Bytes and verdicts are those of channel_scalar.cpp (spec/splitzip_channel.md).
//
// A value costs 3.34 bytes of memory traffic at a ratio of 1.49.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/channel.h"
#include "gpu/device_code.h"

namespace kvlane::channel {

// Of a block of threads, at most.
inline constexpr int kDeviceWarps = 8;

// What a warp has in shared memory.
struct DeviceTile {
  alignas(8) std::uint8_t bases[kTileChannels];
  std::uint8_t elements[kLayerElementsMax];
};

namespace device {

using namespace gpu;

inline constexpr int kStepRows = 4;  // that a warp has at a time, eight threads a row
inline constexpr int kSteps = kTileRows / kStepRows;

// A tile's place in its plane and in the body.
struct Place {
  std::uint32_t rows, channels;
  std::uint32_t row_values;   // from one row to the next
  std::uint32_t first_value;  // of the plane
  std::uint32_t base_codes;   // offsets in the body
  std::uint32_t codes;
};

// Offsets in a body, narrow ones: registers are what kernels lack.
struct Offsets {
  std::uint32_t tiles;
  std::uint32_t counts, anchors, base_codes, codes, sign_mantissa, tails;
};
KVLANE_DEVICE Offsets offsets(const Sections& at) {
  return {static_cast<std::uint32_t>(at.tiles),   static_cast<std::uint32_t>(at.counts),
          static_cast<std::uint32_t>(at.anchors), static_cast<std::uint32_t>(at.base_codes),
          static_cast<std::uint32_t>(at.codes),   static_cast<std::uint32_t>(at.sign_mantissa),
          static_cast<std::uint32_t>(at.tails)};
}

KVLANE_DEVICE Place place_of(const PlaneShape& shape, const Offsets& at, std::uint32_t tile) {
  const auto rows = static_cast<std::uint32_t>(shape.rows);
  const auto channels = static_cast<std::uint32_t>(shape.head_dim);
  const std::uint32_t across = (channels + kTileChannels - 1) / kTileChannels;
  const std::uint32_t down = (rows + kTileRows - 1) / kTileRows;
  const std::uint32_t column = tile % across * kTileChannels;
  const std::uint32_t row = tile / across % down * kTileRows;
  const std::uint32_t head = tile / across / down;
  Place place{};
  place.rows = rows - row < kTileRows ? rows - row : kTileRows;
  place.channels = channels - column < kTileChannels ? channels - column : kTileChannels;
  place.row_values = channels;
  place.first_value = (head * rows + row) * channels + column;
  const auto packed = [](std::uint32_t codes) { return (codes + 3) / 4; };
  place.base_codes =
      at.base_codes + (head * down + row / kTileRows) * packed(channels) + column / 4;
  place.codes = at.codes + (head * packed(rows) + row / 4) * channels + packed(place.rows) * column;
  return place;
}

// The symbols of a layer, a byte each: constants, as kernels cannot index kSymbols.
template <int kLayer>
inline constexpr std::uint32_t kPackedSymbols =
    kSymbols[kLayer][0] | kSymbols[kLayer][1] << 8 | kSymbols[kLayer][2] << 16;
KVLANE_DEVICE std::uint32_t symbols_of(int layer) {
  static_assert(kLayers == 4);
  if (layer < 2) return layer == 0 ? kPackedSymbols<0> : kPackedSymbols<1>;
  return layer == 2 ? kPackedSymbols<2> : kPackedSymbols<3>;
}
// The code of a distance, in a layer with these symbols, and back.
KVLANE_DEVICE unsigned code_in(std::uint32_t symbols, unsigned distance) {
  if (distance == (symbols & 0xFF)) return 0;
  if (distance == (symbols >> 8 & 0xFF)) return 1;
  return distance == symbols >> 16 ? 2 : kEscape;
}
KVLANE_DEVICE unsigned symbol_of(std::uint32_t symbols, unsigned code) {
  return symbols >> 8 * code & 0xFF;
}

KVLANE_DEVICE std::uint32_t lanes_before(int lane) { return (1U << lane) - 1; }

// Two counts of each thread, below 2^16, become those of all threads before it in the warp.
struct Before {
  std::uint32_t first, second;
  std::uint32_t all_first, all_second;
};
template <class Thread>
KVLANE_DEVICE Before sum_before(Thread& t, std::uint32_t first, std::uint32_t second) {
  const std::uint32_t own = first | second << 16;
  std::uint32_t upto = own;
  for (int by = 1; by < kWarpThreads; by *= 2) {
    const std::uint32_t before = t.shuffle_up(upto, by, kWarpThreads);
    if (t.lane() >= by) upto += before;
  }
  const std::uint32_t all = t.shuffle(upto, kWarpThreads - 1);
  return {(upto - own) & 0xFFFF, (upto - own) >> 16, all & 0xFFFF, all >> 16};
}

KVLANE_DEVICE bool is_aligned(const PlaneShape& shape, const std::byte* plane,
                              const std::byte* body) {
  return shape.head_dim % 8 == 0 &&
         (reinterpret_cast<std::uintptr_t>(plane) | reinterpret_cast<std::uintptr_t>(body)) % 16 ==
             0;
}

// Tails of the warps before this one, and of all.
struct TailPlace {
  std::uint32_t before, all;
};
template <class Thread>
KVLANE_DEVICE TailPlace place_tails(Thread& t, std::uint32_t* tail_bytes, std::uint32_t own) {
  if (t.lane() == 0) tail_bytes[t.warp()] = own;
  t.sync_block();
  TailPlace place{};
  for (int warp = 0; warp < t.warps(); ++warp) {
    if (warp < t.warp()) place.before += tail_bytes[warp];
    place.all += tail_bytes[warp];
  }
  return place;
}

}  // namespace device

}  // namespace kvlane::channel
