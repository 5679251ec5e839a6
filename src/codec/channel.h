// Codec `splitzip:channel`: lossless, for planes of bfloat16 values whose channels keep to a few
// neighbouring exponents. Every channel of 64 rows has a base; an exponent is sent as its distance
// from it, in layers of 2-bit codes of which each holds what the one before could not say
// (spec/splitzip_channel.md, which is normative). About 10.7 bits a value, and no codebook: nothing
// is calibrated, agreed upon or kept.
//
//   0        16       16 + 8T   B (each of B, L, S a multiple of 64)         S + n
//   +--------+--------+---------+------------+---------------+---------------+------------------+
//   | Prefix | counts | anchors | base codes | codes         | sign-mantissa | tails: layers 2  |
//   |        | 4T u16 | T u8    | 2 bits a   | 2 bits a      | n bytes       | to 4, raw bytes, |
//   |        |        |         | channel    | value         |               | tile by tile     |
//   +--------+--------+---------+------------+---------------+---------------+------------------+
// A tile is at most 64 rows of at most 64 channels of one head, and is coded by itself. A plane
// that would not shrink, and every plane of another type, is the prefix and the raw values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/channel_kernels.h"
#include "codec/codec.h"

namespace kvlane {

namespace channel {

// All of these are part of the format: changing one is a new body version.
inline constexpr std::uint8_t kBodyVersion = 1;
inline constexpr std::size_t kSectionAlignment = 64;
inline constexpr std::size_t kBodyAlignment = 16;

enum class Mode : std::uint8_t { kRaw = 0, kCoded = 1 };

// The first bytes of a body.
struct Prefix {
  std::uint8_t version;
  std::uint8_t mode;
  std::uint8_t element_type;
  std::uint8_t reserved;  // must be zero
  std::uint32_t heads;
  std::uint32_t rows;
  std::uint32_t channels;
};
static_assert(sizeof(Prefix) == 16);

// Offsets of the parts of a coded body, from its start. Only the tails need more than the shape.
struct Sections {
  std::size_t tiles;
  std::size_t counts, anchors, anchors_end;
  std::size_t base_codes, base_codes_end;
  std::size_t codes, codes_end;
  std::size_t sign_mantissa;
  std::size_t tails;
};

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
constexpr std::size_t round_up(std::size_t a, std::size_t b) { return divide_up(a, b) * b; }

constexpr Sections sections(const PlaneShape& shape) {
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto rows = static_cast<std::size_t>(shape.rows);
  const auto channels = static_cast<std::size_t>(shape.head_dim);
  const std::size_t row_blocks = divide_up(rows, kTileRows);
  Sections s{};
  s.tiles = heads * row_blocks * divide_up(channels, kTileChannels);
  s.counts = sizeof(Prefix);
  s.anchors = s.counts + sizeof(TileCounts) * s.tiles;
  s.anchors_end = s.anchors + s.tiles;
  s.base_codes = round_up(s.anchors_end, kSectionAlignment);
  s.base_codes_end = s.base_codes + heads * row_blocks * packed_bytes(channels);
  s.codes = round_up(s.base_codes_end, kSectionAlignment);
  s.codes_end = s.codes + heads * packed_bytes(rows) * channels;
  s.sign_mantissa = round_up(s.codes_end, kSectionAlignment);
  s.tails = s.sign_mantissa + shape.elements();
  return s;
}

// The length of a raw body, and the most that a plane of so many bytes takes.
constexpr std::size_t raw_body_bytes(std::size_t plane_bytes) {
  return sizeof(Prefix) + (plane_bytes + kBodyAlignment - 1) / kBodyAlignment * kBodyAlignment;
}

}  // namespace channel

// Planes have at most kPlaneElementsMax (format/frame.h) values; decode refuses more as kCorrupt.
// Codebooks have no use here. Takes some 70 KB of the caller's stack.
class ChannelCodec final : public Codec {
 public:
  // `isa` is supported by this processor; all give the same bytes.
  explicit ChannelCodec(Isa isa) : kernels_(channel::kernels(isa)) {}

  std::string_view name() const override { return "splitzip:channel"; }
  std::size_t bound(const PlaneShape& shape) const override {
    return channel::raw_body_bytes(shape.bytes());
  }
  using Codec::decode;
  using Codec::encode;
  std::size_t encode(const PlaneShape& shape, const PlaneView& plane, const Codebook* book,
                     std::span<std::byte> destination) const override;
  // Also kUnsupported, for a body version of the future.
  Status decode(const PlaneShape& shape, ByteView coded, const PlaneSpan& plane) const override;

 private:
  const channel::Kernels& kernels_;
};

}  // namespace kvlane
