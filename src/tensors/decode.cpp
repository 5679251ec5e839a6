// The decoder of tensor files: believes nothing, gives back the original plane by plane.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "codec/codec.h"
#include "cpu/memory.h"
#include "format/checksum.h"
#include "tensors/ordered_work.h"
#include "tensors/plane_cursor.h"
#include "tensors/tensor_file.h"

namespace kvlane {
namespace {

struct Decoding {
  ByteSource& file;
  ByteSink& original;
  const TensorFileWork& work;
  TensorFileSummary& summary;
  PlaneCursor cursor;        // take
  std::uint64_t offset = 0;  // take: in the file, where the next record begins
  std::uint64_t chain = 0;   // take
  std::uint64_t done = 0;    // put: bytes of the original
};

class Decoder {
 public:
  static Result<Decoder> make(Decoding& shared, std::size_t plane_bytes) {
    KVLANE_ASSIGN(PageBuffer coded, PageBuffer::allocate(plane_bytes + kTensorFileAlignment));
    KVLANE_ASSIGN(PageBuffer plane, PageBuffer::allocate(std::max<std::size_t>(plane_bytes, 1)));
    return Decoder(shared, std::move(coded), std::move(plane));
  }

  Status take(std::uint64_t number) {
    if (shared_->work.stopped && shared_->work.stopped()) return aborted("interrupted");
    plane_ = shared_->cursor.next();
    std::array<std::byte, kTensorFileRecordBytes> bytes;
    KVLANE_ASSIGN(const std::size_t there, shared_->file.read_at(shared_->offset, bytes));
    KVLANE_ASSIGN(
        record_, parse_plane_record(ByteView(bytes).first(there), number, segment(), plane_.shape));
    offset_ = shared_->offset + kTensorFileRecordBytes;
    padded_bytes_ = record_.coded_bytes + record_padding(record_.coded_bytes);
    shared_->offset = offset_ + padded_bytes_;
    shared_->chain = next_in_chain(shared_->chain, record_.record_checksum);
    return shared_->file.bytes() ? Status() : read();
  }

  Status work() {
    if (shared_->file.bytes()) KVLANE_TRY(read());
    const ByteView coded = ByteView(coded_.data(), padded_bytes_).first(record_.coded_bytes);
    const ByteView padding = ByteView(coded_.data(), padded_bytes_).subspan(coded.size());
    if (xxh3_64(coded) != record_.coded_checksum) return wrong("a wrong checksum");
    if (!all_zero(padding)) return wrong("something behind its coded bytes");
    if (record_.codec == PlaneCodec::kNone) {
      values_ = coded;
    } else {
      const std::span<std::byte> values(decoded_.data(), plane_.bytes);
      KVLANE_ASSIGN(const Codec* const codec,
                    find_codec(plane_codec_name(record_.codec), shared_->work.isa));
      const Status status = codec->decode(plane_shape(segment(), plane_.shape), coded, values);
      if (!status.ok()) return status.with_context("plane " + std::to_string(record_.number));
      values_ = values;
    }
    if (xxh3_64(values_) != record_.plane_checksum) {
      return wrong("other values than the original");
    }
    return {};
  }

  Status put() {
    SegmentCoding& coding = shared_->summary.segments[plane_.segment];
    coding.coded_bytes += record_.coded_bytes;
    if (record_.codec != PlaneCodec::kNone) {
      coding.coded_planes += 1;
      coding.codec = record_.codec;
    }
    shared_->done += plane_.bytes;
    if (shared_->work.progress) {
      shared_->work.progress(shared_->done, shared_->summary.head.file_bytes);
    }
    return shared_->original.sequential() ? shared_->original.write_at(plane_.offset, values_)
                                          : Status();
  }

  Status store() {
    return shared_->original.sequential() ? Status()
                                          : shared_->original.write_at(plane_.offset, values_);
  }

 private:
  Decoder(Decoding& shared, PageBuffer coded, PageBuffer decoded)
      : shared_(&shared), coded_(std::move(coded)), decoded_(std::move(decoded)) {}

  const Segment& segment() const { return shared_->summary.head.segments[plane_.segment]; }

  Status wrong(const char* what) const {
    return corrupt("plane " + std::to_string(record_.number) + " has " + what);
  }

  // The coded plane and its padding. No more than a plane has: parse_plane_record saw to that.
  Status read() {
    KVLANE_ASSIGN(const std::size_t there,
                  shared_->file.read_at(offset_, {coded_.data(), padded_bytes_}));
    if (there == padded_bytes_) return {};
    return corrupt("the file is cut off within plane " + std::to_string(record_.number));
  }

  Decoding* shared_;
  PageBuffer coded_;
  PageBuffer decoded_;
  // Of the item that is worked on.
  PlaneCursor::Plane plane_;
  PlaneRecord record_;
  std::uint64_t offset_ = 0;  // of the coded bytes
  std::size_t padded_bytes_ = 0;
  ByteView values_;
};

// The table, taken in as it comes where nobody knows how much there is.
Result<Bytes> read_table(ByteSource& file, const TensorFileHeader& header) {
  constexpr std::size_t kStepBytes = std::size_t{1} << 20;
  Bytes table;
  while (table.size() < header.table_bytes) {
    const std::size_t at = table.size();
    const std::size_t step = std::min(kStepBytes, header.table_bytes - at);
    table.resize(at + step);
    KVLANE_ASSIGN(const std::size_t there,
                  file.read_at(kTensorFileHeaderBytes + at, std::span(table).subspan(at)));
    table.resize(at + there);
    if (there < step) break;
  }
  return table;
}

// Step 6: what the header promises fits into a file of that length.
Status check_room(const TensorFileHeader& header, std::optional<std::uint64_t> file_bytes) {
  if (!file_bytes) return {};
  const std::uint64_t around = kTensorFileHeaderBytes + header.table_bytes + kTensorFileEndBytes;
  const bool fits =
      *file_bytes >= around && header.planes <= (*file_bytes - around) / kTensorFileRecordBytes;
  if (fits) return {};
  return corrupt("the file is cut off: it cannot have " + std::to_string(header.planes) +
                 " planes in " + std::to_string(*file_bytes) + " bytes");
}

Result<TensorFileHead> read_head(ByteSource& file, std::uint64_t& offset) {
  std::array<std::byte, kTensorFileHeaderBytes> bytes;
  KVLANE_ASSIGN(const std::size_t there, file.read_at(0, bytes));
  KVLANE_ASSIGN(const TensorFileHeader header,
                parse_tensor_file_header(ByteView(bytes).first(there)));
  KVLANE_TRY(check_room(header, file.bytes()));
  KVLANE_ASSIGN(const Bytes table, read_table(file, header));
  offset = kTensorFileHeaderBytes + table.size();
  return parse_segment_table(header, table);
}

Status read_end(ByteSource& file, const TensorFileEnd& expected) {
  // One byte more than there may be.
  std::array<std::byte, kTensorFileEndBytes + 1> bytes;
  KVLANE_ASSIGN(const std::size_t there,
                file.read_at(expected.container_bytes - kTensorFileEndBytes, bytes));
  KVLANE_TRY(
      check_tensor_file_end(ByteView(bytes).first(std::min(there, kTensorFileEndBytes)), expected));
  if (there > kTensorFileEndBytes) return corrupt("something follows the end of the tensor file");
  return {};
}

}  // namespace

Result<TensorFileSummary> decode_tensor_file(ByteSource& file, const TensorFileWork& work,
                                             ByteSink& original) {
  TensorFileSummary summary;
  std::uint64_t offset = 0;
  KVLANE_ASSIGN(summary.head, read_head(file, offset));
  summary.segments.resize(summary.head.segments.size());
  Decoding shared{.file = file,
                  .original = original,
                  .work = work,
                  .summary = summary,
                  .cursor = PlaneCursor(summary.head.segments),
                  .offset = offset,
                  .chain = summary.head.header_checksum};
  const std::size_t plane_bytes = plane_bytes_max(summary.head.segments);
  std::vector<Decoder> decoders;
  const auto useful = std::min<std::uint64_t>(std::max(work.threads, 1), summary.head.planes);
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(useful, 1); ++i) {
    KVLANE_ASSIGN(Decoder decoder, Decoder::make(shared, plane_bytes));
    decoders.push_back(std::move(decoder));
  }
  KVLANE_TRY(OrderedWork<Decoder>(summary.head.planes, decoders).run());
  summary.container_bytes = shared.offset + kTensorFileEndBytes;
  KVLANE_TRY(read_end(file, {.planes = summary.head.planes,
                             .container_bytes = summary.container_bytes,
                             .chain = shared.chain}));
  return summary;
}

}  // namespace kvlane
