// Bodies of `splitzip:channel`: sections, checks, and the way over the tiles. What happens inside a
// tile is in channel_scalar.cpp and its peers.
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

#include "cpu/streaming_copy.h"
#include "format/frame.h"

namespace kvlane {

static_assert(channel::raw_body_bytes(2 * kPlaneElementsMax) <= kPlaneBytesMax);
static_assert(sizeof(channel::Prefix) + channel::kBodyAlignment - 1 <= kPlaneGrowthBytesMax);

namespace channel {

const Kernels& kernels(Isa isa) {
  if constexpr (kX86) {
    if (isa == Isa::kAvx512Bf16) return kAvx512Bf16Kernels;
    if (isa >= Isa::kAvx2) return kAvx2Kernels;
  }
  return kScalarKernels;
}

namespace {

static_assert(kTileChannels % 4 == 0 && kTileRows % 4 == 0,
              "packed lengths of tiles add up to those of planes");

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* at, const T& value) {
  std::memcpy(at, &value, sizeof(T));
}

bool is_aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kSectionAlignment == 0;
}

// The place of one band: in the plane and in the sections whose layout follows from the shape.
struct BandPlace {
  std::size_t tile;  // index of its first tile
  int rows;
  int channels;
  int head;
  std::size_t values;       // index of its first value in the plane
  std::size_t in_head;      // the same in its head
  std::size_t next_values;  // of the next band's; for the last band that of the plane's end
  std::size_t base_codes;   // offsets in their sections
  std::size_t codes;

  int tiles() const { return tile_count(channels); }
};

// Calls visit(place) for each band of up to `band_tiles` tiles, in order, until one returns false;
// false if one did.
template <class Visit>
bool for_each_band(const PlaneShape& shape, int band_tiles, const Visit& visit) {
  const int band_channels = band_tiles * kTileChannels;
  BandPlace place{};
  std::size_t block_values = 0;  // of the first value of the 64 rows
  for (int head = 0; head < shape.kv_heads; ++head) {
    place.head = head;
    for (int row = 0; row < shape.rows; row += kTileRows) {
      place.rows = std::min(kTileRows, shape.rows - row);
      const std::size_t next_block = block_values + std::size_t(place.rows) * shape.head_dim;
      for (int first = 0; first < shape.head_dim; first += band_channels) {
        place.channels = std::min(band_channels, shape.head_dim - first);
        place.values = block_values + first;
        place.in_head = place.values - head * shape.head_elements();
        const bool last = first + band_channels >= shape.head_dim;
        place.next_values = last ? next_block : place.values + band_channels;
        if (!visit(static_cast<const BandPlace&>(place))) return false;
        place.tile += place.tiles();
        place.base_codes += packed_bytes(place.channels);
        place.codes += packed_bytes(place.rows) * place.channels;
      }
      block_values = next_block;
    }
  }
  return true;
}

void fill_zeros(std::span<std::byte> body, std::size_t begin, std::size_t end) {
  std::fill(body.begin() + begin, body.begin() + end, std::byte{0});
}

bool all_zero(ByteView body, std::size_t begin, std::size_t end) {
  return kvlane::all_zero(body.subspan(begin, end - begin));
}

// ------------------------------------------------------------------------------------------------
// Encoder.

void store_prefix(const PlaneShape& shape, Mode mode, std::byte* body) {
  store(body, Prefix{.version = kBodyVersion,
                     .mode = static_cast<std::uint8_t>(mode),
                     .element_type = static_cast<std::uint8_t>(shape.type),
                     .reserved = 0,
                     .heads = static_cast<std::uint32_t>(shape.kv_heads),
                     .rows = static_cast<std::uint32_t>(shape.rows),
                     .channels = static_cast<std::uint32_t>(shape.head_dim)});
}

std::size_t encode_raw(const PlaneShape& shape, const PlaneView& plane, std::span<std::byte> body) {
  const std::size_t end = raw_body_bytes(shape.bytes());
  store_prefix(shape, Mode::kRaw, body.data());
  copy_plane(shape, plane, body.data() + sizeof(Prefix));
  fill_zeros(body, sizeof(Prefix) + shape.bytes(), end);
  return end;
}

// The length of the coded body; 0 if it would not be shorter than `limit`.
std::size_t encode_coded(const Kernels& kernels, const PlaneShape& shape, const PlaneView& plane,
                         std::size_t limit, std::span<std::byte> body) {
  const Sections at = sections(shape);
  if (at.tails >= limit) return 0;
  const bool stream = shape.bytes() >= kStreamingBytes && is_aligned(body.data()) &&
                      shape.head_dim % kTileChannels == 0;
  // Behind the last band of all comes none: then something that is there.
  const auto next_values = [&](const BandPlace& place) {
    const std::size_t in_head = place.in_head + (place.next_values - place.values);
    if (in_head < shape.head_elements()) return plane.head(place.head) + 2 * in_head;
    return plane.head(std::min(place.head + 1, shape.kv_heads - 1));
  };
  EncodeScratch scratch;
  std::size_t end = at.tails;
  const bool fits = for_each_band(shape, kEncodeBandTiles, [&](const BandPlace& place) {
    TileTables tables[kEncodeBandTiles];
    kernels.encode({.rows = place.rows,
                    .channels = place.channels,
                    .row_values = static_cast<std::size_t>(shape.head_dim),
                    .values = plane.head(place.head) + 2 * place.in_head,
                    .next_values = next_values(place),
                    .base_codes = body.data() + at.base_codes + place.base_codes,
                    .codes = body.data() + at.codes + place.codes,
                    .sign_mantissa = body.data() + at.sign_mantissa + place.values,
                    .stream = stream},
                   scratch, tables);
    std::size_t tails = 0;
    for (int i = 0; i < place.tiles(); ++i) {
      const std::size_t tile = place.tile + i;
      store(body.data() + at.counts + sizeof(TileCounts) * tile, tables[i].counts);
      body[at.anchors + tile] = std::byte{tables[i].anchor};
      tails += tail_bytes(tables[i].counts);
    }
    if (tails >= limit - end) return false;
    std::memcpy(body.data() + end, scratch.tails, tails);
    end += tails;
    return true;
  });
  if (stream) kernels.finish_stream();
  const std::size_t padded = round_up(end, kBodyAlignment);
  if (!fits || padded >= limit) return 0;
  fill_zeros(body, at.anchors_end, at.base_codes);
  fill_zeros(body, at.base_codes_end, at.codes);
  fill_zeros(body, at.codes_end, at.sign_mantissa);
  fill_zeros(body, end, padded);
  store_prefix(shape, Mode::kCoded, body.data());
  return padded;
}

// ------------------------------------------------------------------------------------------------
// Decoder.

Status check_prefix(const Prefix& p, const PlaneShape& shape) {
  if (p.version != kBodyVersion) {
    return unsupported("the splitzip:channel body has version " + std::to_string(p.version) +
                       ", this reader knows version " + std::to_string(kBodyVersion));
  }
  if (p.mode > static_cast<std::uint8_t>(Mode::kCoded)) {
    return corrupt("the splitzip:channel body has mode " + std::to_string(p.mode));
  }
  if (p.reserved != 0) return corrupt("the splitzip:channel body uses a reserved byte");
  if (p.element_type != static_cast<std::uint8_t>(shape.type) || shape.type == ElementType::kF32) {
    return corrupt("the splitzip:channel body has element type " + std::to_string(p.element_type) +
                   ", its plane " + element_name(shape.type));
  }
  if (p.heads != static_cast<std::uint32_t>(shape.kv_heads) ||
      p.rows != static_cast<std::uint32_t>(shape.rows) ||
      p.channels != static_cast<std::uint32_t>(shape.head_dim) ||
      shape.elements() > kPlaneElementsMax) {
    return corrupt("the splitzip:channel body has " + std::to_string(p.heads) + " heads of " +
                   std::to_string(p.rows) + " rows of " + std::to_string(p.channels) +
                   " channels, its plane " + std::to_string(shape.kv_heads) + " of " +
                   std::to_string(shape.rows) + " of " + std::to_string(shape.head_dim));
  }
  if (p.mode == static_cast<std::uint8_t>(Mode::kCoded) &&
      (shape.type != ElementType::kBf16 || shape.elements() == 0)) {
    return corrupt("a splitzip:channel body of " + std::to_string(shape.elements()) + " " +
                   element_name(shape.type) + " values cannot be coded");
  }
  return {};
}

Status check_length(ByteView body, std::size_t expected) {
  if (body.size() == expected) return {};
  return corrupt("the splitzip:channel body has " + std::to_string(body.size()) +
                 " bytes, its prefix and counts mean " + std::to_string(expected));
}

TileTables tables_of(ByteView body, const Sections& at, std::size_t tile) {
  return {load<TileCounts>(body.data() + at.counts + sizeof(TileCounts) * tile),
          std::to_integer<std::uint8_t>(body[at.anchors + tile])};
}

// Where the tails end, or kCorrupt: after this nothing is read past the end of the body.
Result<std::size_t> check_counts(const PlaneShape& shape, ByteView body, const Sections& at) {
  std::size_t end = at.tails;
  std::size_t tile = 0;
  const bool good = for_each_band(shape, kDecodeBandTiles, [&](const BandPlace& place) {
    for (int i = 0; i < place.tiles(); ++i) {
      tile = place.tile + i;
      const TileCounts counts = tables_of(body, at, tile).counts;
      int most = (place.rows + 1) * tile_channels(place.channels, i);
      for (const std::uint16_t count : counts.escapes) {
        if (count > most) return false;
        most = count;
      }
      end += tail_bytes(counts);
    }
    return true;
  });
  if (good) return end;
  return corrupt("tile " + std::to_string(tile) +
                 " of the splitzip:channel body has more escapes than a layer has elements");
}

Status decode_coded(const Kernels& kernels, const PlaneShape& shape, ByteView body,
                    const PlaneSpan& plane) {
  const Sections at = sections(shape);
  if (body.size() < at.tails) {
    return corrupt("the splitzip:channel body has " + std::to_string(body.size()) +
                   " bytes, its plane needs " + std::to_string(at.tails) + " and more");
  }
  KVLANE_ASSIGN(const std::size_t end, check_counts(shape, body, at));
  KVLANE_TRY(check_length(body, round_up(end, kBodyAlignment)));
  if (!all_zero(body, at.anchors_end, at.base_codes) ||
      !all_zero(body, at.base_codes_end, at.codes) ||
      !all_zero(body, at.codes_end, at.sign_mantissa) || !all_zero(body, end, body.size())) {
    return corrupt("the splitzip:channel body has padding that is not zero");
  }
  const bool stream = plane.past_caches && is_aligned(plane.heads) &&
                      plane.head_stride % kSectionAlignment == 0 &&
                      shape.head_dim % kTileChannels == 0;
  DecodeScratch scratch;
  std::size_t tails = at.tails;
  std::size_t tile = 0;
  const bool good = for_each_band(shape, kDecodeBandTiles, [&](const BandPlace& place) {
    DecodeBand band{.rows = place.rows,
                    .channels = place.channels,
                    .row_values = static_cast<std::size_t>(shape.head_dim),
                    .values = plane.head(place.head) + 2 * place.in_head,
                    .base_codes = body.data() + at.base_codes + place.base_codes,
                    .codes = body.data() + at.codes + place.codes,
                    .sign_mantissa = body.data() + at.sign_mantissa + place.values,
                    .next_sign_mantissa = body.data() + at.sign_mantissa + place.next_values,
                    .tails = body.data() + tails,
                    .tiles = {},
                    .stream = stream};
    for (int i = 0; i < place.tiles(); ++i) {
      band.tiles[i] = tables_of(body, at, place.tile + i);
      tails += tail_bytes(band.tiles[i].counts);
    }
    const int done = kernels.decode(band, scratch);
    tile = place.tile + done;
    return done == place.tiles();
  });
  if (stream) kernels.finish_stream();
  if (good) return {};
  return corrupt("tile " + std::to_string(tile) +
                 " of the splitzip:channel body has other escapes than its counts say, or bits "
                 "set behind its codes");
}

Status decode_raw(const PlaneShape& shape, ByteView body, const PlaneSpan& plane) {
  KVLANE_TRY(check_length(body, raw_body_bytes(shape.bytes())));
  if (!all_zero(body, sizeof(Prefix) + shape.bytes(), body.size())) {
    return corrupt("the splitzip:channel body has padding that is not zero");
  }
  copy_plane(shape, body.data() + sizeof(Prefix), plane);
  return {};
}

}  // namespace
}  // namespace channel

std::size_t ChannelCodec::encode(const PlaneShape& shape, const PlaneView& plane, const Codebook*,
                                 std::span<std::byte> destination) const {
  using namespace channel;
  assert(shape.elements() <= kPlaneElementsMax && shape.type != ElementType::kF32);
  assert(destination.size() >= bound(shape));
  if (shape.type == ElementType::kBf16 && shape.elements() > 0) {
    const std::size_t end =
        encode_coded(kernels_, shape, plane, bound(shape), destination.first(bound(shape)));
    if (end != 0) return end;
  }
  return encode_raw(shape, plane, destination);
}

Status ChannelCodec::decode(const PlaneShape& shape, ByteView coded, const PlaneSpan& plane) const {
  using namespace channel;
  if (coded.size() < sizeof(Prefix)) {
    return corrupt("a splitzip:channel body of " + std::to_string(coded.size()) +
                   " bytes has no room for its prefix");
  }
  const auto prefix = load<Prefix>(coded.data());
  KVLANE_TRY(check_prefix(prefix, shape));
  if (prefix.mode == static_cast<std::uint8_t>(Mode::kRaw)) return decode_raw(shape, coded, plane);
  return decode_coded(kernels_, shape, coded, plane);
}

}  // namespace kvlane
