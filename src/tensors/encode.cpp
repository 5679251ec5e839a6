// The encoder of tensor files: reads a plane, codes it if that makes it smaller, and writes its
// record where the one before ends.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "codec/codec.h"
#include "cpu/memory.h"
#include "format/checksum.h"
#include "format/frame.h"
#include "tensors/ordered_work.h"
#include "tensors/plane_cursor.h"
#include "tensors/rows.h"
#include "tensors/tensor_file.h"

namespace kvlane {
namespace {

PlaneCodec codec_of(const Segment& segment, PlaneCodec wanted) {
  if (wanted == PlaneCodec::kNone || !segment.type) return PlaneCodec::kNone;
  switch (*segment.type) {
    case ElementType::kBf16: return wanted;
    case ElementType::kFp8E4m3:
    case ElementType::kFp8E5m2: return PlaneCodec::kSplitZip;
    case ElementType::kFp16:
    case ElementType::kF32: break;
  }
  return PlaneCodec::kNone;
}

// What all workers share; who may touch it is said by the calls of OrderedWork.
struct Encoding {
  ByteSource& original;
  ByteSink& file;
  const TensorFileWork& work;
  TensorFileSummary& summary;  // segments' codecs are set
  PlaneCursor cursor;          // take
  std::uint64_t offset = 0;    // put: in the file, where the next record begins
  std::uint64_t chain = 0;     // put
  std::uint64_t done = 0;      // put: bytes of the original
};

class Encoder {
 public:
  // Room for a record with its header before and its padding behind the plane, so that it is
  // written at once: one with the plane as it is, one with the coded plane.
  static Result<Encoder> make(Encoding& shared, std::size_t plane_bytes) {
    const std::size_t coded = plane_bytes + kPlaneGrowthBytesMax;
    const std::size_t room = kTensorFileRecordBytes + coded + kTensorFileAlignment;
    KVLANE_ASSIGN(PageBuffer stored, PageBuffer::allocate(room));
    KVLANE_ASSIGN(PageBuffer packed, PageBuffer::allocate(room));
    return Encoder(shared, std::move(stored), std::move(packed));
  }

  Status take(std::uint64_t number) {
    if (shared_->work.stopped && shared_->work.stopped()) return aborted("interrupted");
    plane_ = shared_->cursor.next();
    record_ = {.number = number};
    return {};
  }

  Status work() {
    const std::span<std::byte> values(stored_.data() + kTensorFileRecordBytes, plane_.bytes);
    KVLANE_ASSIGN(const std::size_t there, shared_->original.read_at(plane_.offset, values));
    if (there != values.size()) return corrupt("the file became shorter while it was read");
    record_.plane_checksum = xxh3_64(values);
    KVLANE_TRY(code(values));
    std::byte* const from = record_.codec == PlaneCodec::kNone ? stored_.data() : packed_.data();
    const auto header = build_plane_record(record_);
    std::copy(header.begin(), header.end(), from);
    const std::size_t end = kTensorFileRecordBytes + record_.coded_bytes;
    const std::size_t padding = record_padding(record_.coded_bytes);
    std::fill_n(from + end, padding, std::byte{});
    bytes_ = {from, end + padding};
    return {};
  }

  Status put() {
    SegmentCoding& coding = shared_->summary.segments[plane_.segment];
    coding.coded_bytes += record_.coded_bytes;
    coding.coded_planes += record_.codec != PlaneCodec::kNone;
    offset_ = shared_->offset;
    shared_->offset += bytes_.size();
    shared_->chain = next_in_chain(shared_->chain, record_.record_checksum);
    shared_->done += plane_.bytes;
    if (shared_->work.progress) {
      shared_->work.progress(shared_->done, shared_->summary.head.file_bytes);
    }
    return shared_->file.sequential() ? shared_->file.write_at(offset_, bytes_) : Status();
  }

  Status store() {
    return shared_->file.sequential() ? Status() : shared_->file.write_at(offset_, bytes_);
  }

 private:
  Encoder(Encoding& shared, PageBuffer stored, PageBuffer packed)
      : shared_(&shared), stored_(std::move(stored)), packed_(std::move(packed)) {}

  // Fills in what the record says of the coded plane.
  Status code(ByteView values) {
    const Segment& segment = shared_->summary.head.segments[plane_.segment];
    const PlaneCodec wanted = shared_->summary.segments[plane_.segment].codec;
    if (wanted != PlaneCodec::kNone) {
      KVLANE_ASSIGN(const Codec* const codec,
                    find_codec(plane_codec_name(wanted), shared_->work.isa));
      const PlaneShape shape = plane_shape(segment, plane_.shape);
      const std::span<std::byte> room(packed_.data() + kTensorFileRecordBytes, codec->bound(shape));
      const std::size_t coded = codec->encode(shape, values, nullptr, room);
      if (coded < values.size()) {
        record_.codec = wanted;
        record_.coded_bytes = static_cast<std::uint32_t>(coded);
        record_.coded_checksum = xxh3_64(room.first(coded));
        return {};
      }
    }
    record_.coded_bytes = static_cast<std::uint32_t>(values.size());
    record_.coded_checksum = record_.plane_checksum;
    return {};
  }

  Encoding* shared_;
  PageBuffer stored_;
  PageBuffer packed_;
  // Of the item that is worked on.
  PlaneCursor::Plane plane_;
  PlaneRecord record_;
  ByteView bytes_;
  std::uint64_t offset_ = 0;
};

Status check(const TensorFileEncoding& encoding) {
  if (encoding.row_elements <= kRowElementsMax) return {};
  return invalid_argument("rows of " + std::to_string(encoding.row_elements) +
                          " values are too long, the limit is " + std::to_string(kRowElementsMax));
}

// Codecs and rows of all segments.
Status plan(ByteSource& original, const TensorFileEncoding& encoding, Isa isa,
            TensorFileSummary& summary) {
  std::uint64_t offset = 0;
  for (Segment& segment : summary.head.segments) {
    const PlaneCodec codec = codec_of(segment, encoding.codec);
    summary.segments.push_back({.codec = codec});
    if (segment.type && encoding.row_elements > 0) {
      set_rows(segment, encoding.row_elements);
    } else {
      KVLANE_ASSIGN(const Codec* const coder, find_codec(plane_codec_name(codec), isa));
      KVLANE_TRY(choose_rows(original, offset, *coder, segment));
    }
    offset += segment.bytes;
  }
  return {};
}

}  // namespace

Result<TensorFileSummary> encode_tensor_file(ByteSource& original,
                                             const TensorFileEncoding& encoding,
                                             const TensorFileWork& work, ByteSink& file) {
  KVLANE_TRY(check(encoding));
  TensorFileSummary summary;
  KVLANE_ASSIGN(summary.head, read_original(original, encoding.original));
  KVLANE_TRY(plan(original, encoding, work.isa, summary));
  KVLANE_ASSIGN(const Bytes head, build_tensor_file_head(summary.head));
  KVLANE_TRY(file.write_at(0, head));

  Encoding shared{.original = original,
                  .file = file,
                  .work = work,
                  .summary = summary,
                  .cursor = PlaneCursor(summary.head.segments),
                  .offset = head.size(),
                  .chain = summary.head.header_checksum};
  const std::size_t plane_bytes = plane_bytes_max(summary.head.segments);
  std::vector<Encoder> encoders;
  const auto useful = std::min<std::uint64_t>(std::max(work.threads, 1), summary.head.planes);
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(useful, 1); ++i) {
    KVLANE_ASSIGN(Encoder encoder, Encoder::make(shared, plane_bytes));
    encoders.push_back(std::move(encoder));
  }
  KVLANE_TRY(OrderedWork<Encoder>(summary.head.planes, encoders).run());
  summary.container_bytes = shared.offset + kTensorFileEndBytes;
  const auto end = build_tensor_file_end({.planes = summary.head.planes,
                                          .container_bytes = summary.container_bytes,
                                          .chain = shared.chain});
  KVLANE_TRY(file.write_at(shared.offset, end));
  return summary;
}

}  // namespace kvlane
