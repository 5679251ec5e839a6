// Frames from strangers: whatever the bytes, parsing stays in bounds, and what is accepted is
// exactly what build_frame would have written. Checksums are put right first, or nothing would get
// past them.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "format/describe.h"
#include "format/frame.h"

namespace kvlane {
namespace {

constexpr std::size_t kBodyChecksumAt = 160;
constexpr std::size_t kHeaderChecksumAt = 184;

void require(bool condition) {
  if (!condition) std::abort();
}

void put_checksum(std::span<std::byte> frame, std::size_t at, ByteView of) {
  const std::uint64_t checksum = XXH3_64bits(of.data(), of.size());
  std::memcpy(frame.data() + at, &checksum, sizeof(checksum));
}

void parse_and_rebuild(ByteView bytes) {
  const Result<Frame> frame = parse_frame(bytes);
  if (!frame.ok()) return;
  const Result<Bytes> rebuilt = build_frame(frame->header, frame->k, frame->v);
  require(rebuilt.ok() && std::equal(bytes.begin(), bytes.end(), rebuilt->begin(), rebuilt->end()));
  require(describe_frame_json(bytes).ok());
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  // A heap copy of the exact size, so that AddressSanitizer sees every byte read too many.
  const auto copy = std::make_unique<std::byte[]>(size);
  if (size > 0) std::memcpy(copy.get(), data, size);
  const std::span<std::byte> bytes(copy.get(), size);
  parse_and_rebuild(bytes);
  if (size >= kFrameHeaderBytes) {
    put_checksum(bytes, kBodyChecksumAt, bytes.subspan(kFrameHeaderBytes));
    put_checksum(bytes, kHeaderChecksumAt, bytes.first(kHeaderChecksumAt));
    parse_and_rebuild(bytes);
  }
  if (const auto description = describe_frame_json(bytes); description.ok()) {
    require(!description->empty());
  }
  return 0;
}
