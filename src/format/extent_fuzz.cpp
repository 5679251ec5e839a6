// Headers of extents from strangers: whatever the bytes, parsing stays in bounds, and what is
// accepted is exactly what build_extent_head would have written. Checksums are put right first, or
// nothing would get past them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "format/checksum.h"

#include "format/extent.h"

namespace kvlane {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void parse_and_rebuild(ByteView bytes) {
  const Result<ExtentHead> head = parse_extent_head(bytes);
  if (!head.ok()) return;
  const Result<Bytes> page = build_extent_head(*head);
  require(page.ok() && std::equal(page->begin(), page->end(), bytes.begin()));
  require(head->extent_bytes() <= kExtentBytesMax);
  const Result<Bytes> again = lengthen_extent_head(shorten_extent_head(*page));
  require(again.ok() && *again == *page);
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
  // As they lie in segments, and as catalogues keep them: a few hundred bytes make a page.
  for (Result<Bytes> page :
       {lengthen_extent_head(bytes), Result<Bytes>(Bytes(bytes.begin(), bytes.end()))}) {
    if (!page.ok() || page->size() < kExtentHeaderBytes) continue;
    constexpr std::size_t kEnd = kExtentHeaderBytes - sizeof(std::uint64_t);
    const std::uint64_t checksum = xxh3_64(ByteView(*page).first(kEnd));
    std::memcpy(page->data() + kEnd, &checksum, sizeof checksum);
    parse_and_rebuild(*page);
  }
  return 0;
}
