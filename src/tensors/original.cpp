// Cutting originals into segments: the readers of each kind give tensors with their places, one
// function fills what lies between.
// SPDX-License-Identifier: Apache-2.0
#include "tensors/original.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/checked.h"
#include "model/safetensors.h"

namespace kvlane {
namespace {

// A tensor and where it begins in the original.
struct Place {
  std::uint64_t begin = 0;
  Segment segment;
};

Segment other_bytes(std::uint64_t bytes) { return {.role = SegmentRole::kOther, .bytes = bytes}; }

// Bytes of a type that codecs know, if that many follow from the shape; else just bytes.
bool shape_has(const Segment& segment, ElementType type) {
  std::optional<std::uint64_t> bytes = element_bytes(type);
  for (const std::uint64_t dimension : segment.shape) {
    bytes = bytes ? checked_mul(*bytes, dimension) : std::nullopt;
  }
  return bytes == segment.bytes;
}

std::string printable(std::string text) {
  if (text.size() > kSegmentTypeNameBytesMax) return "structured";
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

// The first bytes of the original, at most `bytes_max`.
Result<Bytes> first_bytes(ByteSource& original, std::uint64_t bytes_max) {
  Bytes bytes(std::min(bytes_max, original.bytes().value_or(0)));
  KVLANE_ASSIGN(const std::size_t there, original.read_at(0, bytes));
  if (there != bytes.size()) return corrupt("the file became shorter while it was read");
  return bytes;
}

// Orders the places and puts bytes of role 0 between them.
Result<std::vector<Segment>> tile(std::vector<Place> places, std::uint64_t file_bytes) {
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.begin, a.begin + a.segment.bytes) <
           std::pair(b.begin, b.begin + b.segment.bytes);
  });
  std::vector<Segment> segments;
  std::uint64_t at = 0;
  for (Place& place : places) {
    if (place.begin < at) {
      return corrupt("tensor \"" + place.segment.name + "\" overlaps the one before it");
    }
    if (place.begin > at) segments.push_back(other_bytes(place.begin - at));
    at = place.begin + place.segment.bytes;
    segments.push_back(std::move(place.segment));
  }
  if (at < file_bytes) segments.push_back(other_bytes(file_bytes - at));
  return segments;
}

// --- safetensors ---

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

std::uint64_t safetensors_header_bytes(ByteView file) {
  return ByteReader(file).read<std::uint64_t>();
}

std::optional<ElementType> safetensors_type(const std::string& name) {
  for (const ElementType type :
       {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    if (name == safetensors_type_name(type)) return type;
  }
  return std::nullopt;
}

Result<std::vector<Place>> safetensors_places(ByteSource& original) {
  const std::uint64_t file_bytes = *original.bytes();
  KVLANE_ASSIGN(const Bytes length, first_bytes(original, kLengthBytes));
  const std::uint64_t header_bytes = safetensors_header_bytes(length);
  if (length.size() < kLengthBytes || header_bytes > file_bytes - kLengthBytes ||
      header_bytes > kSafetensorsHeaderBytesMax) {
    return corrupt("its header is said to have " + std::to_string(header_bytes) + " bytes");
  }
  const std::uint64_t data_begin = kLengthBytes + header_bytes;
  KVLANE_ASSIGN(const Bytes header, first_bytes(original, data_begin));
  KVLANE_ASSIGN(std::vector<SafetensorsEntry> entries,
                parse_safetensors_header(as_text(header).substr(kLengthBytes)));
  std::vector<Place> places;
  for (SafetensorsEntry& entry : entries) {
    if (entry.begin > entry.end || entry.end > file_bytes - data_begin) {
      return corrupt("tensor \"" + entry.name + "\" ends behind the end of the file");
    }
    Segment segment{.role = SegmentRole::kTensor, .bytes = entry.end - entry.begin};
    segment.shape = std::move(entry.shape);
    const std::optional<ElementType> type = safetensors_type(entry.type);
    if (type && shape_has(segment, *type)) segment.type = type;
    segment.type_name = printable(std::move(entry.type));
    segment.name = std::move(entry.name);
    places.push_back({data_begin + entry.begin, std::move(segment)});
  }
  return places;
}

// --- .npy ---

std::optional<ElementType> npy_type(const NpyHeader& header) {
  if (header.descr == "<f2") return ElementType::kFp16;
  return std::nullopt;
}

// What NumPy has no type for, packages store as void or unsigned integers of that size.
Status check_npy_type(const NpyHeader& header, ElementType type) {
  const bool two = header.descr == "<f2" || header.descr == "<u2" || header.descr == "|V2" ||
                   header.descr == "<V2" || header.descr == "<i2";
  const bool one = header.descr == "|u1" || header.descr == "|i1" || header.descr == "|V1" ||
                   header.descr == "<V1" || header.descr == "<f1";
  if (element_bytes(type) == 2 ? two : one) return {};
  return invalid_argument("values of type \"" + printable(header.descr) + "\" cannot be " +
                          element_name(type));
}

Result<std::vector<Place>> npy_places(ByteSource& original, const OriginalOptions& options) {
  KVLANE_ASSIGN(const Bytes first, first_bytes(original, kNpyHeaderBytesMax));
  KVLANE_ASSIGN(NpyHeader header, parse_npy_header(first));
  const std::uint64_t rest = *original.bytes() - header.bytes;
  std::optional<std::uint64_t> bytes = header.item_bytes;
  for (const std::uint64_t dimension : header.shape) {
    bytes = bytes ? checked_mul(*bytes, dimension) : std::nullopt;
  }
  if (header.item_bytes == 0) bytes = rest;  // objects, structures: whatever is there
  if (!bytes || *bytes > rest) {
    return corrupt("its array has more bytes than the " + std::to_string(rest) +
                   " that follow its header");
  }
  if (options.type) KVLANE_TRY(check_npy_type(header, *options.type));
  Segment segment{.role = SegmentRole::kTensor, .bytes = *bytes};
  segment.shape = std::move(header.shape);
  segment.type = options.type ? options.type : npy_type(header);
  if (segment.shape.size() > kSegmentDimensionsMax) {
    return corrupt("its array has " + std::to_string(segment.shape.size()) + " dimensions");
  }
  segment.type_name = printable(std::move(header.descr));
  std::vector<Place> places;
  places.push_back({header.bytes, std::move(segment)});
  return places;
}

// --- raw values ---

Result<std::vector<Place>> raw_places(std::uint64_t file_bytes, const OriginalOptions& options) {
  if (!options.type) {
    return invalid_argument("what it holds cannot be told from its first bytes: say --dtype");
  }
  const std::size_t value_bytes = element_bytes(*options.type);
  const std::uint64_t elements = file_bytes / value_bytes;
  Segment segment{.role = SegmentRole::kTensor,
                  .type = *options.type,
                  .bytes = elements * value_bytes,
                  .shape = options.shape,
                  .type_name = element_name(*options.type)};
  if (segment.shape.empty()) {
    segment.shape = {elements};
  } else if (!shape_has(segment, *options.type)) {
    return invalid_argument("it has " + std::to_string(elements) + " values of " +
                            element_name(*options.type) + ", not those of the given shape");
  }
  std::vector<Place> places;
  places.push_back({0, std::move(segment)});
  return places;
}

Result<std::vector<Place>> places_of(ByteSource& original, TensorFileKind kind,
                                     const OriginalOptions& options) {
  switch (kind) {
    case TensorFileKind::kRaw: return raw_places(*original.bytes(), options);
    case TensorFileKind::kNpy: return npy_places(original, options);
    case TensorFileKind::kSafetensors: break;
  }
  if (options.type) return invalid_argument("a safetensors file says its types itself");
  return safetensors_places(original);
}

Result<std::vector<Segment>> segments_of(ByteSource& original, TensorFileKind kind,
                                         const OriginalOptions& options) {
  KVLANE_ASSIGN(std::vector<Place> places, places_of(original, kind, options));
  return tile(std::move(places), *original.bytes());
}

}  // namespace

Result<TensorFileKind> guess_kind(ByteSource& original) {
  KVLANE_ASSIGN(const Bytes first, first_bytes(original, kLengthBytes + 1));
  if (begins_npy(first)) return TensorFileKind::kNpy;
  const bool header_fits = first.size() == kLengthBytes + 1 &&
                           safetensors_header_bytes(first) <= *original.bytes() - kLengthBytes;
  if (header_fits && as_text(first).back() == '{') return TensorFileKind::kSafetensors;
  return TensorFileKind::kRaw;
}

Result<TensorFileHead> read_original(ByteSource& original, const OriginalOptions& options) {
  if (!original.bytes()) {
    return invalid_argument("it must be a regular file: its size has to be known first");
  }
  if (options.type == ElementType::kF32) return invalid_argument("no codec takes f32");
  KVLANE_ASSIGN(const TensorFileKind guessed, guess_kind(original));
  TensorFileHead head{.kind = options.kind.value_or(guessed)};
  if (!options.shape.empty() && head.kind != TensorFileKind::kRaw) {
    return invalid_argument("only raw values take a shape: this file says its own");
  }
  auto segments = segments_of(original, head.kind, options);
  if (!segments.ok() && head.kind == TensorFileKind::kRaw) return segments.status();
  if (!segments.ok()) {
    return segments.status().with_context(std::string("as a ") + kind_name(head.kind) + " file");
  }
  head.segments = std::move(*segments);
  return head;
}

}  // namespace kvlane
