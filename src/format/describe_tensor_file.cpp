// Tensor files as JSON: the field names of the specification, and what coding was worth.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "format/checksum.h"
#include "format/describe.h"
#include "format/tensor_file.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

// `count` bytes from `offset` on, or those that are there.
ByteView part(ByteView file, std::uint64_t offset, std::uint64_t count) {
  if (offset >= file.size()) return {};
  return file.subspan(offset, std::min<std::uint64_t>(count, file.size() - offset));
}

// Goes over the records of a file whose header and table were right.
class Walk {
 public:
  Walk(ByteView file, std::uint64_t offset, std::uint64_t chain)
      : file_(file), offset_(offset), chain_(chain) {}

  Result<Json> segment(const Segment& segment) {
    std::uint64_t coded_bytes = 0;
    Json codecs = Json::object();
    for (std::uint64_t i = 0; i < segment.planes(); ++i) {
      KVLANE_ASSIGN(const PlaneRecord record, next(segment, segment_plane(segment, i)));
      coded_bytes += record.coded_bytes;
      const char* const codec = plane_codec_name(record.codec);
      codecs[codec] = codecs.value(codec, 0) + 1;
    }
    return Json{{"role", segment.role == SegmentRole::kTensor ? "tensor" : "other"},
                {"element_type", segment.type ? element_name(*segment.type) : "bytes"},
                {"type_name", segment.type_name},
                {"name", segment.name},
                {"shape", segment.shape},
                {"bytes", segment.bytes},
                {"row_elements", segment.row_elements},
                {"plane_rows", segment.plane_rows},
                {"coded_bytes", coded_bytes},
                {"codecs", std::move(codecs)},
                {"ratio", compression_ratio(segment.bytes, coded_bytes)}};
  }

  Status end() const {
    const ByteView rest = part(file_, offset_, file_.size());
    KVLANE_TRY(check_tensor_file_end(
        rest.first(std::min(rest.size(), kTensorFileEndBytes)),
        {.planes = number_, .container_bytes = offset_ + kTensorFileEndBytes, .chain = chain_}));
    if (rest.size() == kTensorFileEndBytes) return {};
    return corrupt("something follows the end of the tensor file");
  }

 private:
  Result<PlaneRecord> next(const Segment& segment, const SegmentPlane& plane) {
    KVLANE_ASSIGN(
        const PlaneRecord record,
        parse_plane_record(part(file_, offset_, kTensorFileRecordBytes), number_, segment, plane));
    const std::size_t padded_bytes = record.coded_bytes + record_padding(record.coded_bytes);
    const ByteView body = part(file_, offset_ + kTensorFileRecordBytes, padded_bytes);
    const std::string name = "plane " + std::to_string(number_);
    if (body.size() < padded_bytes) return corrupt("the file is cut off within " + name);
    if (xxh3_64(body.first(record.coded_bytes)) != record.coded_checksum) {
      return corrupt(name + " has a wrong checksum");
    }
    const ByteView padding = body.subspan(record.coded_bytes);
    if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{}; })) {
      return corrupt(name + " has something behind its coded bytes");
    }
    offset_ += kTensorFileRecordBytes + padded_bytes;
    chain_ = next_in_chain(chain_, record.record_checksum);
    ++number_;
    return record;
  }

  ByteView file_;
  std::uint64_t offset_;
  std::uint64_t chain_;
  std::uint64_t number_ = 0;
};

}  // namespace

Result<std::string> describe_tensor_file_json(ByteView file) {
  KVLANE_ASSIGN(const TensorFileHeader header,
                parse_tensor_file_header(part(file, 0, kTensorFileHeaderBytes)));
  KVLANE_ASSIGN(
      const TensorFileHead head,
      parse_segment_table(header, part(file, kTensorFileHeaderBytes, header.table_bytes)));
  if (head.segments.size() > kSegmentsDescribedMax) {
    return exhausted("the file has more than " + std::to_string(kSegmentsDescribedMax) +
                     " segments");
  }
  Walk walk(file, kTensorFileHeaderBytes + header.table_bytes, header.header_checksum);
  Json segments = Json::array();
  for (const Segment& segment : head.segments) {
    KVLANE_ASSIGN(Json described, walk.segment(segment));
    segments.push_back(std::move(described));
  }
  KVLANE_TRY(walk.end());
  const Json description = {
      {"version", kTensorFileVersion},  {"kind", kind_name(head.kind)},
      {"file_bytes", head.file_bytes},  {"planes", head.planes},
      {"container_bytes", file.size()}, {"ratio", compression_ratio(head.file_bytes, file.size())},
      {"checksums_verified", true},     {"segments", std::move(segments)}};
  // Names need not be UTF-8.
  return description.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvlane
