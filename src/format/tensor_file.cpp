// Tensor files: raw structs for the parts of fixed size, one list of checks for readers and
// writers.
// SPDX-License-Identifier: Apache-2.0
#include "format/tensor_file.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "format/checksum.h"

namespace kvlane {
namespace {

constexpr std::size_t kEntryBytes = 24;  // before shape and names
constexpr std::size_t kEntryAlignment = 8;

// The parts byte for byte. Naturally aligned on purpose: no padding.
struct RawTensorFile {
  std::array<std::uint8_t, 8> magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint32_t flags;
  std::uint64_t file_bytes;
  std::uint64_t planes;
  std::uint32_t segments;
  std::uint32_t table_bytes;
  std::uint8_t kind;
  std::array<std::uint8_t, 7> reserved_41;
  std::uint64_t table_checksum;
  std::uint64_t header_checksum;
};
static_assert(sizeof(RawTensorFile) == kTensorFileHeaderBytes &&
              offsetof(RawTensorFile, kind) == 40);

struct RawRecord {
  std::uint64_t number;
  std::uint32_t coded_bytes;
  std::uint8_t codec;
  std::array<std::uint8_t, 3> reserved_13;
  std::uint64_t coded_checksum;
  std::uint64_t plane_checksum;
  std::array<std::uint8_t, 24> reserved_32;
  std::uint64_t record_checksum;
};
static_assert(sizeof(RawRecord) == kTensorFileRecordBytes);
static_assert(offsetof(RawRecord, coded_checksum) == 16);

struct RawEnd {
  std::array<std::uint8_t, 8> magic;
  std::uint64_t planes;
  std::uint64_t container_bytes;
  std::uint64_t chain;
  std::array<std::uint8_t, 24> reserved_32;
  std::uint64_t end_checksum;
};
static_assert(sizeof(RawEnd) == kTensorFileEndBytes);

// The first byte begins no UTF-8 text, the last one does not survive a change of line ends.
constexpr std::array<std::uint8_t, 8> kTensorFileMagic = {0x8B, 'K', 'V', 'L', 'T', 'E', 'N', '\n'};
constexpr std::array<std::uint8_t, 8> kTensorFileEndMagic = {0x8B, 'K', 'V', 'L',
                                                             'E',  'N', 'D', '\n'};
constexpr std::size_t kTensorFileVersionEnd = offsetof(RawTensorFile, flags);

// Each part ends in a checksum of all that is before it.
template <class Raw>
std::uint64_t checksum_of(const Raw& raw) {
  return xxh3_64(std::as_bytes(std::span(&raw, 1)).first(sizeof(Raw) - sizeof(std::uint64_t)));
}

template <class Raw>
std::array<std::byte, sizeof(Raw)> bytes_of(const Raw& raw) {
  std::array<std::byte, sizeof(Raw)> bytes;
  std::memcpy(bytes.data(), &raw, sizeof(Raw));
  return bytes;
}

std::size_t padding_to(std::size_t bytes, std::size_t alignment) {
  return (alignment - bytes % alignment) % alignment;
}

// Section 4: the fields of an entry, in themselves and with each other. In the words of a writer;
// readers call the same thing corrupt.
Status check_segment(const Segment& s) {
  if (s.role == SegmentRole::kOther &&
      (s.type || !s.shape.empty() || !s.type_name.empty() || !s.name.empty())) {
    return invalid_argument("bytes between tensors have a type, a shape or a name");
  }
  if (s.type == ElementType::kF32) return invalid_argument("planes of f32 cannot be coded");
  if (s.shape.size() > kSegmentDimensionsMax) {
    return invalid_argument("a tensor has " + std::to_string(s.shape.size()) +
                            " dimensions, at most " + std::to_string(kSegmentDimensionsMax) +
                            " are possible");
  }
  if (s.name.size() > kSegmentNameBytesMax) {
    return invalid_argument("a tensor's name has " + std::to_string(s.name.size()) + " bytes");
  }
  if (s.type_name.size() > kSegmentTypeNameBytesMax ||
      !std::all_of(s.type_name.begin(), s.type_name.end(),
                   [](char c) { return c >= ' ' && c <= '~'; })) {
    return invalid_argument("the name of a type is too long or not printable");
  }
  if (s.row_elements == 0 || s.plane_rows == 0 ||
      s.plane_elements() > kSegmentPlaneBytesMax / s.value_bytes()) {
    return invalid_argument("a plane of " + std::to_string(s.plane_rows) + " rows of " +
                            std::to_string(s.row_elements) + " values is empty or too large");
  }
  if (!s.type) return {};
  std::optional<std::uint64_t> bytes = s.value_bytes();
  // A zero anywhere makes a product of zero, whatever else is there.
  const bool empty = std::find(s.shape.begin(), s.shape.end(), 0U) != s.shape.end();
  for (const std::uint64_t dimension : s.shape) {
    if (bytes && !empty) bytes = checked_mul(*bytes, dimension);
  }
  if (empty) bytes = 0;
  if (bytes != s.bytes) {
    return invalid_argument("a tensor of " + std::to_string(s.bytes) +
                            " bytes has a shape of another size");
  }
  return {};
}

// The sums of section 4; also that they are in range.
Status add_up(TensorFileHead& head) {
  if (head.segments.size() > kSegmentsMax) {
    return invalid_argument(std::to_string(head.segments.size()) + " segments are too many");
  }
  head.file_bytes = 0;
  head.planes = 0;
  for (const Segment& segment : head.segments) {
    KVLANE_TRY(check_segment(segment));
    const auto sum = checked_add(head.file_bytes, segment.bytes);
    if (!sum || *sum > kTensorFileBytesMax) return invalid_argument("the segments are too large");
    head.file_bytes = *sum;
    head.planes += segment.planes();  // fewer than bytes
  }
  return {};
}

void write_entry(const Segment& s, ByteWriter& writer) {
  writer.write(static_cast<std::uint8_t>(s.role));
  writer.write(static_cast<std::uint8_t>(s.type ? static_cast<int>(*s.type) : 0));
  writer.write(static_cast<std::uint8_t>(s.shape.size()));
  writer.write(static_cast<std::uint8_t>(s.type_name.size()));
  writer.write(static_cast<std::uint16_t>(s.name.size()));
  writer.write(std::uint16_t{0});
  writer.write(s.bytes);
  writer.write(s.row_elements);
  writer.write(s.plane_rows);
  for (const std::uint64_t dimension : s.shape) writer.write(dimension);
  writer.write_bytes(as_byte_view(s.type_name));
  writer.write_bytes(as_byte_view(s.name));
  writer.write_bytes(Bytes(padding_to(writer.bytes().size(), kEntryAlignment)));
}

// One entry as it stands there, types and roles known, reserved bytes zero; ranges are not checked.
Result<Segment> read_entry(ByteReader& reader) {
  Segment s;
  const auto role = reader.read<std::uint8_t>();
  const auto type = reader.read<std::uint8_t>();
  const auto dimensions = reader.read<std::uint8_t>();
  const auto type_name_bytes = reader.read<std::uint8_t>();
  const auto name_bytes = reader.read<std::uint16_t>();
  const auto reserved = reader.read<std::uint16_t>();
  s.bytes = reader.read<std::uint64_t>();
  s.row_elements = reader.read<std::uint32_t>();
  s.plane_rows = reader.read<std::uint32_t>();
  for (int i = 0; i < dimensions && !reader.failed(); ++i) {
    s.shape.push_back(reader.read<std::uint64_t>());
  }
  s.type_name = as_text(reader.read_bytes(type_name_bytes));
  s.name = as_text(reader.read_bytes(name_bytes));
  const std::size_t text_bytes = std::size_t{type_name_bytes} + name_bytes;
  const ByteView padding = reader.read_bytes(padding_to(text_bytes, kEntryAlignment));
  if (reader.failed()) return corrupt("it runs over the end of the table");
  if (role > static_cast<int>(SegmentRole::kTensor)) {
    return unsupported("it has the unknown role " + std::to_string(role));
  }
  if (type == 1 || type > static_cast<int>(ElementType::kFp8E5m2)) {
    return unsupported("it has the unknown element type " + std::to_string(type));
  }
  if (reserved != 0 || !all_zero(padding)) return unsupported("it uses reserved bytes");
  s.role = static_cast<SegmentRole>(role);
  if (type != 0) s.type = static_cast<ElementType>(type);
  return s;
}

Status cut_off(const char* what, std::size_t there) {
  return corrupt("the file is cut off: " + std::string(what) + " has only " +
                 std::to_string(there) + " bytes");
}

}  // namespace

const char* kind_name(TensorFileKind kind) {
  switch (kind) {
    case TensorFileKind::kRaw: return "raw";
    case TensorFileKind::kNpy: return "npy";
    case TensorFileKind::kSafetensors: return "safetensors";
  }
  return "unknown";
}

const char* plane_codec_name(PlaneCodec codec) {
  switch (codec) {
    case PlaneCodec::kNone: return "none";
    case PlaneCodec::kSplitZip: return "splitzip";
    case PlaneCodec::kSplitZipChannel: return "splitzip:channel";
  }
  return "unknown";
}

std::uint64_t Segment::planes() const {
  const std::uint64_t rest = elements() % plane_elements();
  return elements() / plane_elements() + (rest >= row_elements) + (rest % row_elements > 0);
}

SegmentPlane segment_plane(const Segment& segment, std::uint64_t index) {
  const std::uint64_t whole = segment.elements() / segment.plane_elements();
  if (index < whole) {
    return {index * segment.plane_elements(), segment.plane_rows, segment.row_elements};
  }
  const std::uint64_t rest = segment.elements() % segment.plane_elements();
  const std::uint64_t rows = rest / segment.row_elements;
  const std::uint64_t first = whole * segment.plane_elements();
  if (index == whole && rows > 0) {
    return {first, static_cast<std::uint32_t>(rows), segment.row_elements};
  }
  return {first + rows * segment.row_elements, 1,
          static_cast<std::uint32_t>(rest % segment.row_elements)};
}

bool begins_tensor_file(ByteView bytes) {
  return bytes.size() >= kTensorFileMagic.size() &&
         std::memcmp(bytes.data(), kTensorFileMagic.data(), kTensorFileMagic.size()) == 0;
}

std::uint64_t next_in_chain(std::uint64_t chain, std::uint64_t record_checksum) {
  const std::array<std::uint64_t, 2> link = {chain, record_checksum};
  return xxh3_64(std::as_bytes(std::span(link)));
}

Result<Bytes> build_tensor_file_head(TensorFileHead& head) {
  KVLANE_TRY(add_up(head));
  ByteWriter writer;
  for (const Segment& segment : head.segments) write_entry(segment, writer);
  writer.write_bytes(Bytes(padding_to(writer.bytes().size(), kTensorFileAlignment)));
  const Bytes table = writer.take();
  if (table.size() > kSegmentTableBytesMax) {
    return invalid_argument("the names and shapes of the tensors take " +
                            std::to_string(table.size()) + " bytes, more than the limit of " +
                            std::to_string(kSegmentTableBytesMax));
  }
  RawTensorFile raw{};
  raw.magic = kTensorFileMagic;
  raw.version = kTensorFileVersion;
  raw.header_bytes = kTensorFileHeaderBytes;
  raw.file_bytes = head.file_bytes;
  raw.planes = head.planes;
  raw.segments = static_cast<std::uint32_t>(head.segments.size());
  raw.table_bytes = static_cast<std::uint32_t>(table.size());
  raw.kind = static_cast<std::uint8_t>(head.kind);
  raw.table_checksum = xxh3_64(table);
  raw.header_checksum = checksum_of(raw);
  head.header_checksum = raw.header_checksum;
  const auto header = bytes_of(raw);
  Bytes bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), table.begin(), table.end());
  return bytes;
}

std::array<std::byte, kTensorFileRecordBytes> build_plane_record(PlaneRecord& record) {
  RawRecord raw{};
  raw.number = record.number;
  raw.coded_bytes = record.coded_bytes;
  raw.codec = static_cast<std::uint8_t>(record.codec);
  raw.coded_checksum = record.coded_checksum;
  raw.plane_checksum = record.plane_checksum;
  raw.record_checksum = checksum_of(raw);
  record.record_checksum = raw.record_checksum;
  return bytes_of(raw);
}

std::array<std::byte, kTensorFileEndBytes> build_tensor_file_end(const TensorFileEnd& end) {
  RawEnd raw{};
  raw.magic = kTensorFileEndMagic;
  raw.planes = end.planes;
  raw.container_bytes = end.container_bytes;
  raw.chain = end.chain;
  raw.end_checksum = checksum_of(raw);
  return bytes_of(raw);
}

Result<TensorFileHeader> parse_tensor_file_header(ByteView bytes) {
  RawTensorFile raw{};
  const std::size_t there = std::min(bytes.size(), sizeof(raw));
  if (there > 0) std::memcpy(&raw, bytes.data(), there);
  if (there < kTensorFileVersionEnd) return cut_off("its header", there);
  if (raw.magic != kTensorFileMagic)
    return corrupt("it is no tensor file of kvlane: wrong magic bytes");
  if (raw.version != kTensorFileVersion) {
    return unsupported("the tensor file has version " + std::to_string(raw.version) +
                       ", this reader knows version " + std::to_string(kTensorFileVersion));
  }
  if (raw.header_bytes != kTensorFileHeaderBytes) {
    return corrupt("the tensor file claims a header of " + std::to_string(raw.header_bytes) +
                   " bytes");
  }
  if (there < sizeof(raw)) return cut_off("its header", there);
  if (raw.header_checksum != checksum_of(raw)) {
    return corrupt("the header of the tensor file has a wrong checksum");
  }
  if (raw.flags != 0 || !all_zero(std::as_bytes(std::span(raw.reserved_41)))) {
    return unsupported("the tensor file uses reserved bytes of its header");
  }
  if (raw.kind > static_cast<int>(TensorFileKind::kSafetensors)) {
    return unsupported("the tensor file holds the unknown kind " + std::to_string(raw.kind));
  }
  if (raw.file_bytes > kTensorFileBytesMax || raw.segments > kSegmentsMax ||
      raw.table_bytes > kSegmentTableBytesMax || raw.table_bytes % kTensorFileAlignment != 0) {
    return corrupt("a size in the header of the tensor file is out of range");
  }
  return TensorFileHeader{.kind = static_cast<TensorFileKind>(raw.kind),
                          .file_bytes = raw.file_bytes,
                          .planes = raw.planes,
                          .segments = raw.segments,
                          .table_bytes = raw.table_bytes,
                          .table_checksum = raw.table_checksum,
                          .header_checksum = raw.header_checksum};
}

Result<TensorFileHead> parse_segment_table(const TensorFileHeader& header, ByteView table) {
  if (table.size() < header.table_bytes) return cut_off("its table", table.size());
  if (xxh3_64(table) != header.table_checksum) {
    return corrupt("the table of the tensor file has a wrong checksum");
  }
  if (header.segments > table.size() / kEntryBytes) {
    return corrupt("the table of the tensor file is too short for " +
                   std::to_string(header.segments) + " segments");
  }
  TensorFileHead head{.kind = header.kind, .header_checksum = header.header_checksum};
  ByteReader reader(table);
  for (std::uint32_t i = 0; i < header.segments; ++i) {
    Result<Segment> segment = read_entry(reader);
    if (!segment.ok()) return segment.status().with_context("segment " + std::to_string(i));
    if (const Status s = check_segment(*segment); !s.ok()) {
      return corrupt("segment " + std::to_string(i) + ": " + s.message());
    }
    head.segments.push_back(std::move(*segment));
  }
  const std::size_t rest = reader.remaining();
  if (rest >= kTensorFileAlignment || !all_zero(reader.read_bytes(rest))) {
    return corrupt("something follows the segments in the table of the tensor file");
  }
  if (const Status s = add_up(head); !s.ok()) return corrupt(s.message());
  if (head.file_bytes != header.file_bytes || head.planes != header.planes) {
    return corrupt("the segments of the tensor file have " + std::to_string(head.file_bytes) +
                   " bytes in " + std::to_string(head.planes) + " planes, its header says " +
                   std::to_string(header.file_bytes) + " in " + std::to_string(header.planes));
  }
  return head;
}

Result<PlaneRecord> parse_plane_record(ByteView bytes, std::uint64_t number, const Segment& segment,
                                       const SegmentPlane& plane) {
  const std::string name = "plane " + std::to_string(number);
  RawRecord raw{};
  if (bytes.size() < sizeof(raw)) return cut_off(name.c_str(), bytes.size());
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (raw.record_checksum != checksum_of(raw)) {
    return corrupt(name + " has a wrong checksum before its coded bytes");
  }
  if (raw.number != number) {
    return corrupt("where " + name + " is due, plane " + std::to_string(raw.number) + " stands");
  }
  if (!all_zero(std::as_bytes(std::span(raw.reserved_13))) ||
      !all_zero(std::as_bytes(std::span(raw.reserved_32)))) {
    return unsupported(name + " uses reserved bytes");
  }
  if (raw.codec > static_cast<int>(PlaneCodec::kSplitZipChannel)) {
    return unsupported(name + " has the unknown codec " + std::to_string(raw.codec));
  }
  const auto codec = static_cast<PlaneCodec>(raw.codec);
  const std::size_t plane_bytes = plane.elements() * segment.value_bytes();
  const bool fits = codec == PlaneCodec::kNone
                        ? raw.coded_bytes == plane_bytes
                        : raw.coded_bytes >= 1 && raw.coded_bytes <= plane_bytes;
  if (!fits || (!segment.type && codec != PlaneCodec::kNone)) {
    return corrupt(name + " of " + std::to_string(plane_bytes) + " bytes cannot have " +
                   std::to_string(raw.coded_bytes) + " in codec " + plane_codec_name(codec));
  }
  return PlaneRecord{.number = raw.number,
                     .coded_bytes = raw.coded_bytes,
                     .codec = codec,
                     .coded_checksum = raw.coded_checksum,
                     .plane_checksum = raw.plane_checksum,
                     .record_checksum = raw.record_checksum};
}

Status check_tensor_file_end(ByteView bytes, const TensorFileEnd& expected) {
  RawEnd raw{};
  if (bytes.size() < sizeof(raw)) return cut_off("its end", bytes.size());
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (raw.magic != kTensorFileEndMagic || raw.end_checksum != checksum_of(raw)) {
    return corrupt("the end of the tensor file has wrong magic bytes or a wrong checksum");
  }
  if (!all_zero(std::as_bytes(std::span(raw.reserved_32))))
    return unsupported("the end of the tensor file uses reserved bytes");
  if (raw.planes != expected.planes || raw.container_bytes != expected.container_bytes) {
    return corrupt("the end of the tensor file tells of " + std::to_string(raw.planes) +
                   " planes in " + std::to_string(raw.container_bytes) + " bytes, there were " +
                   std::to_string(expected.planes) + " in " +
                   std::to_string(expected.container_bytes));
  }
  if (raw.chain != expected.chain) {
    return corrupt("the planes of the tensor file do not belong together: its end has another sum");
  }
  return {};
}

}  // namespace kvlane
