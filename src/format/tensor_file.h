// Tensor files: another file whose tensors are coded plane by plane, and which comes back byte for
// byte. Byte layout, value ranges and the order of checks: spec/tensor_file.md.
//
//   +--------+-------------------+----------+----------+-----+-----+
//   | header | table of segments | record 0 | record 1 | ... | end |      each a multiple of 64
//   bytes
//   +--------+-------------------+----------+----------+-----+-----+
// The segments tile the original file; every record holds one plane of a segment and its size, so
// the file is written and read from front to back. No maths here: src/tensors codes the planes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

inline constexpr std::uint16_t kTensorFileVersion = 1;
inline constexpr std::size_t kTensorFileHeaderBytes = 64;
inline constexpr std::size_t kTensorFileRecordBytes = 64;  // of a plane, before its coded bytes
inline constexpr std::size_t kTensorFileEndBytes = 64;
inline constexpr std::size_t kTensorFileAlignment = 64;

// Limits of what a reader must hold at a time: the table, and one plane.
inline constexpr std::uint64_t kTensorFileBytesMax = std::uint64_t{1} << 62;
inline constexpr std::uint32_t kSegmentsMax = std::uint32_t{1} << 19;
inline constexpr std::uint32_t kSegmentTableBytesMax = std::uint32_t{1} << 26;
inline constexpr std::size_t kSegmentPlaneBytesMax = std::size_t{1} << 24;
inline constexpr std::size_t kSegmentDimensionsMax = 64;
inline constexpr std::size_t kSegmentTypeNameBytesMax = 32;
inline constexpr std::size_t kSegmentNameBytesMax = 65535;

// What the original is. For people; nothing depends on it.
enum class TensorFileKind : std::uint8_t { kRaw = 0, kNpy = 1, kSafetensors = 2 };
const char* kind_name(TensorFileKind kind);

enum class SegmentRole : std::uint8_t { kOther = 0, kTensor = 1 };

// The values are part of the format (spec/tensor_file.md, section 6): never change or reuse one.
enum class PlaneCodec : std::uint8_t { kNone = 0, kSplitZip = 1, kSplitZipChannel = 2 };
const char* plane_codec_name(PlaneCodec codec);  // as find_codec (codec/codec.h) knows it

// A run of bytes of the original. Its planes have the shape [1][rows][row_elements].
struct Segment {
  SegmentRole role = SegmentRole::kOther;
  std::optional<ElementType> type;  // nothing: bytes, which no codec knows; never kF32
  std::uint64_t bytes = 0;
  std::uint32_t row_elements = 1;
  std::uint32_t plane_rows = 1;
  std::vector<std::uint64_t> shape;  // of a tensor, as it lies in memory: the last index fastest
  std::string type_name;             // what the original calls the type
  std::string name;                  // of a tensor; any bytes

  std::size_t value_bytes() const { return type ? element_bytes(*type) : 1; }
  std::uint64_t elements() const { return bytes / value_bytes(); }
  // What its planes follow from; precondition of these: row_elements and plane_rows are in range.
  std::uint64_t plane_elements() const { return std::uint64_t{row_elements} * plane_rows; }
  std::uint64_t planes() const;

  friend bool operator==(const Segment&, const Segment&) = default;
};

// A plane of a segment: [1][rows][row_elements] values from value `first` of the segment on.
struct SegmentPlane {
  std::uint64_t first = 0;
  std::uint32_t rows = 0;
  std::uint32_t row_elements = 0;

  std::size_t elements() const { return std::size_t{rows} * row_elements; }
};

// Plane `index` < segment.planes().
SegmentPlane segment_plane(const Segment& segment, std::uint64_t index);

// All that stands before the first record.
struct TensorFileHead {
  TensorFileKind kind = TensorFileKind::kRaw;
  std::vector<Segment> segments;
  // Filled in by readers and by build_tensor_file_head.
  std::uint64_t file_bytes = 0;  // of the original
  std::uint64_t planes = 0;
  std::uint64_t header_checksum = 0;
};

// What the first kTensorFileHeaderBytes say.
struct TensorFileHeader {
  TensorFileKind kind = TensorFileKind::kRaw;
  std::uint64_t file_bytes = 0;
  std::uint64_t planes = 0;
  std::uint32_t segments = 0;
  std::uint32_t table_bytes = 0;
  std::uint64_t table_checksum = 0;
  std::uint64_t header_checksum = 0;
};

// What stands before the coded bytes of a plane.
struct PlaneRecord {
  std::uint64_t number = 0;  // of the plane in the file
  std::uint32_t coded_bytes = 0;
  PlaneCodec codec = PlaneCodec::kNone;
  std::uint64_t coded_checksum = 0;
  std::uint64_t plane_checksum = 0;  // of the bytes of the original
  std::uint64_t record_checksum = 0;
};

struct TensorFileEnd {
  std::uint64_t planes = 0;
  std::uint64_t container_bytes = 0;  // of the tensor file, this part included
  std::uint64_t chain = 0;
};

// Zeros that follow so many coded bytes.
constexpr std::size_t record_padding(std::size_t coded_bytes) {
  return (kTensorFileAlignment - coded_bytes % kTensorFileAlignment) % kTensorFileAlignment;
}

// Whether a file of this kind begins so; `bytes` may be any first bytes of a file.
bool begins_tensor_file(ByteView bytes);
// The next link of the chain that ties records to their file; it begins as the header's checksum.
std::uint64_t next_in_chain(std::uint64_t chain, std::uint64_t record_checksum);

// Writers. The first fills in file_bytes, planes and header_checksum of `head` and gives header and
// table; it fails with kInvalidArgument when a field is out of the range of spec/tensor_file.md.
Result<Bytes> build_tensor_file_head(TensorFileHead& head);
// Fills in record_checksum.
std::array<std::byte, kTensorFileRecordBytes> build_plane_record(PlaneRecord& record);
std::array<std::byte, kTensorFileEndBytes> build_tensor_file_end(const TensorFileEnd& end);

// Readers of untrusted bytes; kCorrupt or kUnsupported as the page says. `bytes` are those of the
// part and may be fewer when the file ends. After the first one table_bytes is within its limit,
// after the second every segment's planes follow from it without overflow.
Result<TensorFileHeader> parse_tensor_file_header(ByteView bytes);
Result<TensorFileHead> parse_segment_table(const TensorFileHeader& header, ByteView table);
// Steps 9 to 11 of the page: `number` is what the record must have, `plane` the plane that it then
// holds, `segment` the one it belongs to.
Result<PlaneRecord> parse_plane_record(ByteView bytes, std::uint64_t number, const Segment& segment,
                                       const SegmentPlane& plane);
// Steps 14: the end of a file whose records gave `expected`.
Status check_tensor_file_end(ByteView bytes, const TensorFileEnd& expected);

}  // namespace kvlane
