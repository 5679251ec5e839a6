// Headers of extents: one raw struct for the bytes, one list of checks for readers and writers.
// SPDX-License-Identifier: Apache-2.0
#include "format/extent.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "format/cache_format.h"
#include "format/checksum.h"
#include "format/frame.h"
#include "format/name_field.h"

namespace kvlane {
namespace {

struct RawExtentPart {
  std::uint32_t page;
  std::uint32_t k_bytes;
  std::uint32_t v_bytes;
  std::uint32_t reserved_12;
  std::uint64_t checksum;
  std::array<std::byte, 16> tag;
  std::uint64_t reserved_40;
};
static_assert(sizeof(RawExtentPart) == kExtentPartBytes);

constexpr std::size_t kRestBytes =
    kExtentHeaderBytes - kExtentFixedBytes - kExtentLayersMax * kExtentPartBytes - 8;

// The header byte for byte (spec/store.md, section 4). Naturally aligned on purpose: no padding.
struct RawExtent {
  std::array<std::uint8_t, 8> magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint32_t flags;
  ModelIdentity model;
  std::array<char, kFormatNameBytesMax> format;
  std::array<char, kCodecNameBytesMax> codec;
  std::uint8_t element_type;
  std::uint8_t kind;
  std::uint16_t tokens;
  std::uint32_t layer;
  std::uint32_t heads;
  std::uint32_t width;
  std::uint64_t position;
  BlockName name;
  std::uint16_t layers;
  std::uint16_t shard;
  std::uint16_t shards;
  std::uint16_t reserved_182;
  std::uint64_t tables;
  std::uint64_t extent_bytes;
  std::uint64_t key_id;
  std::array<std::byte, 12> nonce;
  std::uint32_t reserved_220;
  std::array<RawExtentPart, kExtentLayersMax> parts;
  std::array<std::byte, kRestBytes> rest;
  std::uint64_t header_checksum;
};
static_assert(sizeof(RawExtent) == kExtentHeaderBytes);
static_assert(offsetof(RawExtent, format) == 48 && offsetof(RawExtent, codec) == 96);
static_assert(offsetof(RawExtent, element_type) == 120 && offsetof(RawExtent, position) == 136);
static_assert(offsetof(RawExtent, name) == 144 && offsetof(RawExtent, layers) == 176);
static_assert(offsetof(RawExtent, extent_bytes) == 192 && offsetof(RawExtent, nonce) == 208);
static_assert(offsetof(RawExtent, parts) == kExtentFixedBytes);
static_assert(offsetof(RawExtent, header_checksum) == 4088);

constexpr std::array<std::uint8_t, 8> kExtentMagic = {0x8B, 'K', 'V', 'L', 'E', 'X', 'T', '\n'};
constexpr std::uint32_t kExtentRopeApplied = 1;
constexpr std::uint32_t kExtentSealed = 2;
constexpr std::uint32_t kExtentEncrypted = 4;
constexpr std::uint32_t kExtentFlags = kExtentRopeApplied | kExtentSealed | kExtentEncrypted;

std::uint64_t header_checksum(const RawExtent& raw) {
  return xxh3_64(std::as_bytes(std::span(&raw, 1)).first(offsetof(RawExtent, header_checksum)));
}

Status require_in_extent(std::string_view field, std::int64_t value, std::int64_t low,
                         std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("the extent's " + std::string(field) + " is " + std::to_string(value) +
                          ", outside " + std::to_string(low) + " ... " + std::to_string(high));
}

Status check_shape(const ExtentHead& h) {
  const bool hidden = h.key.kind == ExtentKind::kHidden;
  KVLANE_TRY(require_in_extent("kind", std::int64_t(h.key.kind), std::int64_t(ExtentKind::kKv),
                               std::int64_t(ExtentKind::kHidden)));
  const ElementType first_type = hidden ? ElementType::kF32 : ElementType::kBf16;
  KVLANE_TRY(require_in_extent("element type", std::int64_t(h.type), std::int64_t(first_type),
                               std::int64_t(ElementType::kFp8E5m2)));
  KVLANE_TRY(require_in_extent("tokens", h.tokens, h.sealed ? kBlockTokens : 1, kBlockTokens));
  KVLANE_TRY(require_in_extent("number of layers", h.layers(), 1, kExtentLayersMax));
  KVLANE_TRY(require_in_extent("first layer", h.layer, 0, kFrameLayerMax + 1 - h.layers()));
  KVLANE_TRY(require_in_extent("heads", h.heads, 1, hidden ? 1 : kFrameKvHeadsMax));
  KVLANE_TRY(
      require_in_extent("width", h.width, 1, hidden ? kExtentHiddenWidthMax : kFrameHeadDimMax));
  KVLANE_TRY(require_in_extent("position", h.position, 0, kFramePositionMax));
  if (h.position % kBlockTokens != 0) {
    return invalid_argument("the extent's position " + std::to_string(h.position) +
                            " is not a multiple of " + std::to_string(kBlockTokens));
  }
  KVLANE_TRY(require_in_extent("shards", h.key.shards, 1, kExtentShardsMax));
  return require_in_extent("shard", h.key.shard, 0, h.key.shards - 1);
}

Status check_names(const ExtentHead& h) {
  if (!is_field_name(h.format, kFormatNameBytesMax)) {
    return invalid_argument("the extent's format " + quoted_name(h.format) + " is not a name");
  }
  if (!is_field_name(h.codec, kCodecNameBytesMax)) {
    return invalid_argument("the extent's codec " + quoted_name(h.codec) + " is not a name");
  }
  if (h.sealed && is_row_format(h.format)) {
    return invalid_argument("slabs of format " + h.format + " are rows and are not sealed");
  }
  if (h.tables != 0 && !h.sealed) {
    return invalid_argument("only the extent of sealed slabs has tables");
  }
  if (h.key.kind == ExtentKind::kHidden && (h.sealed || h.rope_applied)) {
    return invalid_argument("hidden states are neither sealed nor rotated");
  }
  if (h.type == ElementType::kF32 && h.codec != "none") {
    return invalid_argument("hidden states in F32 have no codec, and the extent has " +
                            quoted_name(h.codec));
  }
  if (!h.encrypted && (h.key_id != 0 || !all_zero(h.nonce))) {
    return invalid_argument("only an encrypted extent has a key and a nonce");
  }
  return {};
}

// Precondition: there are at most kExtentLayersMax parts.
Status check_parts(const ExtentHead& h) {
  const bool one_plane = h.key.kind == ExtentKind::kHidden || (h.sealed && h.codec == "none");
  std::uint64_t page = 1;
  for (const ExtentPart& part : h.parts) {
    KVLANE_TRY(require_in_extent("k_bytes", part.k_bytes, 1, kExtentBytesMax));
    KVLANE_TRY(require_in_extent("v_bytes", part.v_bytes, one_plane ? 0 : 1,
                                 one_plane ? 0 : kExtentBytesMax));
    if (part.page != page) {
      return invalid_argument("a part of the extent lies on page " + std::to_string(part.page) +
                              " instead of " + std::to_string(page));
    }
    if (!h.encrypted && !all_zero(part.tag)) {
      return invalid_argument("only parts of an encrypted extent have a tag");
    }
    page += part.padded_bytes() / kExtentPageBytes;
  }
  return require_in_extent("size", static_cast<std::int64_t>(page * kExtentPageBytes),
                           2 * kExtentPageBytes, kExtentBytesMax);
}

Status check_head(const ExtentHead& head) {
  KVLANE_TRY(check_shape(head));
  KVLANE_TRY(check_names(head));
  return check_parts(head);
}

// Precondition: check_head has passed.
RawExtent to_raw(const ExtentHead& h) {
  RawExtent raw{};
  raw.magic = kExtentMagic;
  raw.version = kExtentVersion;
  raw.header_bytes = kExtentHeaderBytes;
  raw.flags = (h.rope_applied ? kExtentRopeApplied : 0) | (h.sealed ? kExtentSealed : 0) |
              (h.encrypted ? kExtentEncrypted : 0);
  raw.model = h.model;
  write_field_name(raw.format, h.format);
  write_field_name(raw.codec, h.codec);
  raw.element_type = static_cast<std::uint8_t>(h.type);
  raw.kind = static_cast<std::uint8_t>(h.key.kind);
  raw.tokens = static_cast<std::uint16_t>(h.tokens);
  raw.layer = static_cast<std::uint32_t>(h.layer);
  raw.heads = static_cast<std::uint32_t>(h.heads);
  raw.width = static_cast<std::uint32_t>(h.width);
  raw.position = static_cast<std::uint64_t>(h.position);
  raw.name = h.key.name;
  raw.layers = static_cast<std::uint16_t>(h.layers());
  raw.shard = static_cast<std::uint16_t>(h.key.shard);
  raw.shards = static_cast<std::uint16_t>(h.key.shards);
  raw.tables = h.tables;
  raw.extent_bytes = h.extent_bytes();
  raw.key_id = h.key_id;
  raw.nonce = h.nonce;
  for (std::size_t p = 0; p < h.parts.size(); ++p) {
    const ExtentPart& part = h.parts[p];
    raw.parts[p] = {.page = part.page,
                    .k_bytes = part.k_bytes,
                    .v_bytes = part.v_bytes,
                    .checksum = part.checksum,
                    .tag = part.tag};
  }
  raw.header_checksum = header_checksum(raw);
  return raw;
}

constexpr std::uint64_t kInt31Max = std::numeric_limits<std::int32_t>::max();

// Wrong values stay wrong: too large ones become the largest, which is out of every range.
ExtentHead from_raw(const RawExtent& raw) {
  const auto narrow = [](std::uint64_t value) {
    return static_cast<int>(std::min(value, kInt31Max));
  };
  ExtentHead head{.key = {.name = raw.name,
                          .kind = static_cast<ExtentKind>(raw.kind),
                          .shards = raw.shards,
                          .shard = raw.shard},
                  .model = raw.model,
                  .format = read_field_name(raw.format),
                  .codec = read_field_name(raw.codec),
                  .type = static_cast<ElementType>(raw.element_type),
                  .tokens = raw.tokens,
                  .layer = narrow(raw.layer),
                  .heads = narrow(raw.heads),
                  .width = narrow(raw.width),
                  .position = static_cast<std::int64_t>(std::min<std::uint64_t>(
                      raw.position, std::numeric_limits<std::int64_t>::max())),
                  .rope_applied = (raw.flags & kExtentRopeApplied) != 0,
                  .sealed = (raw.flags & kExtentSealed) != 0,
                  .tables = raw.tables,
                  .key_id = raw.key_id,
                  .encrypted = (raw.flags & kExtentEncrypted) != 0,
                  .nonce = raw.nonce};
  const std::size_t layers = std::min<std::size_t>(raw.layers, kExtentLayersMax);
  for (std::size_t p = 0; p < layers; ++p) {
    const RawExtentPart& part = raw.parts[p];
    head.parts.push_back({part.page, part.k_bytes, part.v_bytes, part.checksum, part.tag});
  }
  return head;
}

// Of the parts that are there and of those that are not.
bool reserved_is_zero(const RawExtent& raw) {
  if (raw.reserved_182 != 0 || raw.reserved_220 != 0 || !all_zero(raw.rest)) return false;
  const std::size_t layers = std::min<std::size_t>(raw.layers, kExtentLayersMax);
  for (std::size_t p = 0; p < raw.parts.size(); ++p) {
    const RawExtentPart& part = raw.parts[p];
    if (part.reserved_12 != 0 || part.reserved_40 != 0) return false;
    if (p >= layers && !all_zero(std::as_bytes(std::span(&part, 1)))) return false;
  }
  return true;
}

}  // namespace

Status place_parts(ExtentHead& head) {
  std::uint64_t page = 1;
  for (ExtentPart& part : head.parts) {
    if (part.k_bytes == 0) return invalid_argument("a part of an extent has no bytes");
    part.page = static_cast<std::uint32_t>(page);
    page += part.padded_bytes() / kExtentPageBytes;
    if (page * kExtentPageBytes > kExtentBytesMax) {
      return invalid_argument("an extent has at most " + std::to_string(kExtentBytesMax) +
                              " bytes");
    }
  }
  return {};
}

Result<Bytes> build_extent_head(const ExtentHead& head) {
  KVLANE_TRY(check_head(head));
  const RawExtent raw = to_raw(head);
  const ByteView bytes = std::as_bytes(std::span(&raw, 1));
  return Bytes(bytes.begin(), bytes.end());
}

Result<ExtentHead> parse_extent_head(ByteView page) {
  RawExtent raw{};
  if (page.size() < sizeof raw) return corrupt("an extent's header is cut off");
  std::memcpy(&raw, page.data(), sizeof raw);
  if (raw.magic != kExtentMagic) return corrupt("no extent begins here: wrong magic bytes");
  if (raw.version != kExtentVersion) {
    return unsupported("the extent has version " + std::to_string(raw.version) +
                       ", this reader knows version " + std::to_string(kExtentVersion));
  }
  if (raw.header_bytes != kExtentHeaderBytes || raw.header_checksum != header_checksum(raw)) {
    return corrupt("the extent's header has a wrong size or checksum");
  }
  if ((raw.flags & ~kExtentFlags) != 0 || !reserved_is_zero(raw)) {
    return unsupported("the extent uses unknown flags or reserved bytes");
  }
  if (raw.layers > kExtentLayersMax) {
    return corrupt("the extent claims " + std::to_string(raw.layers) + " layers");
  }
  ExtentHead head = from_raw(raw);
  // The checks blame a writer's arguments; here the bytes are to blame.
  if (const Status s = check_head(head); !s.ok()) return corrupt(s.message());
  if (raw.extent_bytes != head.extent_bytes()) {
    return corrupt("the extent's size does not agree with its parts");
  }
  return head;
}

Bytes shorten_extent_head(ByteView page) {
  std::uint16_t layers = 0;
  std::memcpy(&layers, page.data() + offsetof(RawExtent, layers), sizeof layers);
  const std::size_t used =
      kExtentFixedBytes + std::min<std::size_t>(layers, kExtentLayersMax) * kExtentPartBytes;
  Bytes head(page.begin(), page.begin() + static_cast<std::ptrdiff_t>(used));
  const ByteView checksum = page.subspan(offsetof(RawExtent, header_checksum), 8);
  head.insert(head.end(), checksum.begin(), checksum.end());
  return head;
}

Result<Bytes> lengthen_extent_head(ByteView head) {
  constexpr std::size_t kFrameBytes = kExtentFixedBytes + sizeof(std::uint64_t);
  if (head.size() < kFrameBytes ||
      head.size() > kFrameBytes + kExtentLayersMax * kExtentPartBytes) {
    return corrupt("a catalogue's header of an extent has " + std::to_string(head.size()) +
                   " bytes");
  }
  Bytes page(kExtentHeaderBytes);
  const std::size_t used = head.size() - sizeof(std::uint64_t);
  std::copy_n(head.begin(), used, page.begin());
  std::copy(head.begin() + static_cast<std::ptrdiff_t>(used), head.end(),
            page.begin() + offsetof(RawExtent, header_checksum));
  return page;
}

int extent_directory(const BlockName& first, int layer, std::int64_t position, int directories) {
  ByteWriter writer;
  writer.write_bytes(first);
  writer.write(static_cast<std::uint32_t>(layer));
  const auto block = static_cast<std::uint64_t>(position / kBlockTokens);
  // Reduced before they are added: the sum of a hash and a number could wrap around.
  const auto n = static_cast<std::uint64_t>(directories);
  return static_cast<int>((xxh3_64(writer.bytes()) % n + block % n) % n);
}

}  // namespace kvlane
