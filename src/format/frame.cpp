// Frames: one raw struct for the header's bytes, one list of checks for readers and writers.
// SPDX-License-Identifier: Apache-2.0
#include "format/frame.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string_view>

#include "format/cache_format.h"
#include "format/checksum.h"
#include "format/name_field.h"

namespace kvlane {
namespace {

// The header byte for byte (spec/frame.md, section 3). Naturally aligned on purpose: no padding.
struct RawFrame {
  std::array<std::uint8_t, 8> magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint32_t flags;
  ModelIdentity model;
  std::array<char, kFormatNameBytesMax> format;
  std::array<char, kCodecNameBytesMax> codec;
  std::uint8_t element_type;
  std::uint8_t reserved_121;
  std::uint16_t tokens;
  std::uint32_t layer;
  std::uint32_t kv_heads;
  std::uint32_t head_dim;
  std::uint64_t position;
  std::uint32_t plane_elements;
  std::uint32_t k_bytes;
  std::uint32_t v_bytes;
  std::uint32_t reserved_156;
  std::uint64_t body_checksum;
  std::uint64_t tables;
  std::uint64_t reserved_176;
  std::uint64_t header_checksum;
};
static_assert(sizeof(RawFrame) == kFrameHeaderBytes);
static_assert(offsetof(RawFrame, format) == 48 && offsetof(RawFrame, codec) == 96);
static_assert(offsetof(RawFrame, element_type) == 120 && offsetof(RawFrame, tokens) == 122);
static_assert(offsetof(RawFrame, position) == 136 && offsetof(RawFrame, k_bytes) == 148);
static_assert(offsetof(RawFrame, body_checksum) == 160 && offsetof(RawFrame, tables) == 168);
static_assert(offsetof(RawFrame, header_checksum) == 184);

// The first byte begins no UTF-8 text, the last one does not survive a change of line ends.
constexpr std::array<std::uint8_t, 8> kFrameMagic = {0x8B, 'K', 'V', 'L', 'A', 'N', 'E', '\n'};
constexpr std::size_t kFrameVersionEnd = offsetof(RawFrame, flags);
// No plane and no sealed slab is longer.
constexpr std::size_t kBodyBytesMax = 4 * 2 * kPlaneElementsMax + kSealedGrowthBytesMax;
static_assert(kBodyBytesMax <= std::numeric_limits<std::uint32_t>::max() &&
              kBodyBytesMax >= kPlaneBytesMax);
constexpr std::uint32_t kFrameRopeApplied = 1;
constexpr std::uint32_t kFrameSealed = 2;

static_assert(std::uint64_t{kFrameKvHeadsMax} * kBlockTokens * kFrameHeadDimMax <
                  std::numeric_limits<std::uint32_t>::max(),
              "the product of fields that are in range cannot wrap around");

std::uint64_t header_checksum(const RawFrame& raw) {
  return xxh3_64(std::as_bytes(std::span(&raw, 1)).first(offsetof(RawFrame, header_checksum)));
}

// The numeric fields as they were read or given, wide enough to hold any wrong value.
struct Numbers {
  std::int64_t element_type, tokens, layer, kv_heads, head_dim, position, k_bytes, v_bytes;
  bool sealed;
  bool packed;  // sealed, and no planes
};

Status require_in_frame(std::string_view field, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("the frame's " + std::string(field) + " is " + std::to_string(value) +
                          ", outside " + std::to_string(low) + " ... " + std::to_string(high));
}

// Step 5 of spec/frame.md, section 6, in three parts: the shape, what follows from it, the names.
Status check_shape(const Numbers& n) {
  KVLANE_TRY(require_in_frame("element type", n.element_type, std::int64_t(ElementType::kBf16),
                              std::int64_t(ElementType::kFp8E5m2)));
  KVLANE_TRY(require_in_frame("tokens", n.tokens, n.sealed ? kBlockTokens : 1, kBlockTokens));
  KVLANE_TRY(require_in_frame("layer", n.layer, 0, kFrameLayerMax));
  KVLANE_TRY(require_in_frame("kv_heads", n.kv_heads, 1, kFrameKvHeadsMax));
  KVLANE_TRY(require_in_frame("head_dim", n.head_dim, 1, kFrameHeadDimMax));
  KVLANE_TRY(require_in_frame("position", n.position, 0, kFramePositionMax));
  if (n.position % kBlockTokens != 0) {
    return invalid_argument("the frame's position " + std::to_string(n.position) +
                            " is not a multiple of " + std::to_string(kBlockTokens));
  }
  return require_in_frame("number of plane elements", n.kv_heads * n.tokens * n.head_dim, 1,
                          kPlaneElementsMax);
}

// Precondition: check_shape has passed, so the product of a plane cannot overflow.
Status check_lengths(const Numbers& n) {
  const std::int64_t plane_elements = n.kv_heads * n.tokens * n.head_dim;
  const auto value_bytes =
      static_cast<std::int64_t>(element_bytes(static_cast<ElementType>(n.element_type)));
  const std::int64_t plane_bytes = value_bytes * plane_elements;
  if (n.packed) {
    const std::int64_t sealed_bytes_max = 4 * plane_bytes + std::int64_t{kSealedGrowthBytesMax};
    KVLANE_TRY(require_in_frame("k_bytes", n.k_bytes, 1, sealed_bytes_max));
    return require_in_frame("v_bytes", n.v_bytes, 0, 0);
  }
  const std::int64_t plane_bytes_max = plane_bytes + std::int64_t{kPlaneGrowthBytesMax};
  KVLANE_TRY(require_in_frame("k_bytes", n.k_bytes, 1, plane_bytes_max));
  return require_in_frame("v_bytes", n.v_bytes, 1, plane_bytes_max);
}

// Also holds formats of rows, which are named as their element types, against these.
Status check_names(const FrameHeader& header) {
  const std::string& format = header.format;
  const ElementType type = header.type;
  if (!is_field_name(format, kFormatNameBytesMax)) {
    return invalid_argument("the frame's format " + quoted_name(format) + " is not a name");
  }
  if (!is_field_name(header.codec, kCodecNameBytesMax)) {
    return invalid_argument("the frame's codec " + quoted_name(header.codec) + " is not a name");
  }
  if (header.sealed) {
    if (!is_row_format(format)) return {};
    return invalid_argument("slabs of format " + format + " are rows and are not sealed");
  }
  for (const ElementType other :
       {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    if (format == element_name(other) && type != other) {
      return invalid_argument("a frame of format " + std::string(format) + " cannot have " +
                              element_name(type) + " planes");
    }
  }
  return {};
}

Numbers numbers_of(const FrameHeader& h) {
  return {.element_type = std::int64_t(h.type),
          .tokens = h.tokens,
          .layer = h.layer,
          .kv_heads = h.kv_heads,
          .head_dim = h.head_dim,
          .position = h.position,
          .k_bytes = h.k_bytes,
          .v_bytes = h.v_bytes,
          .sealed = h.sealed,
          .packed = h.packed()};
}

Numbers numbers_of(const RawFrame& raw) {
  constexpr std::uint64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
  const bool sealed = (raw.flags & kFrameSealed) != 0;
  return {.element_type = raw.element_type,
          .tokens = raw.tokens,
          .layer = raw.layer,
          .kv_heads = raw.kv_heads,
          .head_dim = raw.head_dim,
          .position = static_cast<std::int64_t>(std::min(raw.position, kInt64Max)),
          .k_bytes = raw.k_bytes,
          .v_bytes = raw.v_bytes,
          .sealed = sealed,
          .packed = sealed && read_field_name(raw.codec) == "none"};
}

// Precondition: the checks above have passed.
RawFrame to_raw(const FrameHeader& h) {
  RawFrame raw{};
  raw.magic = kFrameMagic;
  raw.version = kFrameVersion;
  raw.header_bytes = kFrameHeaderBytes;
  raw.flags = (h.rope_applied ? kFrameRopeApplied : 0) | (h.sealed ? kFrameSealed : 0);
  raw.model = h.model;
  write_field_name(raw.format, h.format);
  write_field_name(raw.codec, h.codec);
  raw.element_type = static_cast<std::uint8_t>(h.type);
  raw.tokens = static_cast<std::uint16_t>(h.tokens);
  raw.layer = static_cast<std::uint32_t>(h.layer);
  raw.kv_heads = static_cast<std::uint32_t>(h.kv_heads);
  raw.head_dim = static_cast<std::uint32_t>(h.head_dim);
  raw.position = static_cast<std::uint64_t>(h.position);
  raw.plane_elements = static_cast<std::uint32_t>(h.plane_elements());
  raw.k_bytes = h.k_bytes;
  raw.v_bytes = h.v_bytes;
  raw.body_checksum = h.body_checksum;
  raw.tables = h.tables;
  raw.header_checksum = header_checksum(raw);
  return raw;
}

FrameHeader from_raw(const RawFrame& raw) {
  return {.model = raw.model,
          .format = read_field_name(raw.format),
          .codec = read_field_name(raw.codec),
          .type = static_cast<ElementType>(raw.element_type),
          .layer = static_cast<int>(raw.layer),
          .kv_heads = static_cast<int>(raw.kv_heads),
          .head_dim = static_cast<int>(raw.head_dim),
          .position = static_cast<std::int64_t>(raw.position),
          .tokens = raw.tokens,
          .rope_applied = (raw.flags & kFrameRopeApplied) != 0,
          .sealed = (raw.flags & kFrameSealed) != 0,
          .tables = raw.tables,
          .k_bytes = raw.k_bytes,
          .v_bytes = raw.v_bytes,
          .body_checksum = raw.body_checksum,
          .header_checksum = raw.header_checksum};
}

// Steps 1 to 4: the header's bytes are what a writer of this version wrote.
Result<RawFrame> read_raw_header(ByteView bytes) {
  RawFrame raw{};
  const std::size_t there = std::min(bytes.size(), kFrameHeaderBytes);
  if (there > 0) std::memcpy(&raw, bytes.data(), there);
  if (there < kFrameVersionEnd) {
    return corrupt("a frame cannot begin in the last " + std::to_string(there) + " bytes");
  }
  if (raw.magic != kFrameMagic) return corrupt("no frame begins here: wrong magic bytes");
  if (raw.version != kFrameVersion) {
    return unsupported("the frame has version " + std::to_string(raw.version) +
                       ", this reader knows version " + std::to_string(kFrameVersion));
  }
  if (raw.header_bytes != kFrameHeaderBytes) {
    return corrupt("the frame claims a header of " + std::to_string(raw.header_bytes) + " bytes");
  }
  if (there < kFrameHeaderBytes) {
    return corrupt("the frame's header is cut off after " + std::to_string(there) + " bytes");
  }
  if (raw.header_checksum != header_checksum(raw)) {
    return corrupt("the frame's header has a wrong checksum");
  }
  if ((raw.flags & ~(kFrameRopeApplied | kFrameSealed)) != 0) {
    return unsupported("the frame has unknown flags: " + std::to_string(raw.flags));
  }
  const bool sealed = (raw.flags & kFrameSealed) != 0;
  if (raw.reserved_121 != 0 || raw.reserved_156 != 0 || raw.reserved_176 != 0 ||
      (raw.tables != 0 && !sealed)) {
    return unsupported("the frame uses reserved bytes of its header");
  }
  return raw;
}

}  // namespace

Status write_frame(FrameHeader header, const BodyWriter& body, std::span<std::byte> frame) {
  if (header.tables != 0 && !header.sealed) {
    return invalid_argument("only the frame of a sealed slab has tables");
  }
  KVLANE_TRY(check_shape(numbers_of(header)));
  KVLANE_TRY(check_lengths(numbers_of(header)));
  KVLANE_TRY(check_names(header));

  assert(frame.size() == kFrameHeaderBytes + header.body_bytes());
  const std::span<std::byte> planes = frame.subspan(kFrameHeaderBytes);
  body(planes.first(header.k_bytes), planes.subspan(header.k_bytes));
  header.body_checksum = xxh3_64(planes);
  const RawFrame raw = to_raw(header);
  std::memcpy(frame.data(), &raw, sizeof(raw));
  return {};
}

Result<Bytes> build_frame(FrameHeader header, ByteView k, ByteView v) {
  KVLANE_TRY(set_body_lengths(header, k, v));
  Bytes frame(kFrameHeaderBytes + header.body_bytes());
  KVLANE_TRY(write_frame(std::move(header), body_of(k, v), frame));
  return frame;
}

Status set_body_lengths(FrameHeader& header, ByteView k, ByteView v) {
  // Before they are narrowed to the header's 32 bits.
  KVLANE_TRY(require_in_frame("k_bytes", static_cast<std::int64_t>(k.size()), 1, kBodyBytesMax));
  KVLANE_TRY(require_in_frame("v_bytes", static_cast<std::int64_t>(v.size()), 0, kBodyBytesMax));
  header.k_bytes = static_cast<std::uint32_t>(k.size());
  header.v_bytes = static_cast<std::uint32_t>(v.size());
  return {};
}

BodyWriter body_of(ByteView k, ByteView v) {
  return [k, v](std::span<std::byte> to_k, std::span<std::byte> to_v) {
    assert(k.size() == to_k.size() && v.size() == to_v.size());
    std::copy(k.begin(), k.end(), to_k.begin());
    std::copy(v.begin(), v.end(), to_v.begin());
  };
}

Result<FrameHeader> parse_frame_header(ByteView bytes) {
  KVLANE_ASSIGN(const RawFrame raw, read_raw_header(bytes));
  const Numbers numbers = numbers_of(raw);
  // The checks blame a writer's arguments; here the bytes are to blame.
  if (const Status s = check_shape(numbers); !s.ok()) return corrupt(s.message());
  FrameHeader header = from_raw(raw);
  if (raw.plane_elements != header.plane_elements()) {
    return corrupt("the frame's plane_elements is " + std::to_string(raw.plane_elements) +
                   ", its shape has " + std::to_string(header.plane_elements()));
  }
  if (const Status s = check_lengths(numbers); !s.ok()) return corrupt(s.message());
  if (const Status s = check_names(header); !s.ok()) return corrupt(s.message());
  return header;
}

Result<Frame> parse_frame(ByteView bytes) {
  KVLANE_ASSIGN(FrameHeader header, parse_frame_header(bytes));
  const ByteView body = bytes.subspan(kFrameHeaderBytes);
  if (body.size() != header.body_bytes()) {
    return corrupt("the frame's body has " + std::to_string(body.size()) +
                   " bytes, its header says " + std::to_string(header.body_bytes()));
  }
  if (xxh3_64(body) != header.body_checksum) {
    return corrupt("the frame's body has a wrong checksum");
  }
  const ByteView k = body.first(header.k_bytes);
  const ByteView v = body.subspan(header.k_bytes);
  return Frame{std::move(header), k, v};
}

}  // namespace kvlane
