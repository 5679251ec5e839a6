// Tensor files from strangers: whatever the bytes, decoding stays in bounds, and what is accepted
// is as long as its header says. Checksums are put right first, or nothing would get past them. And
// the other way: any bytes are an original, of every kind, and come back.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "format/describe.h"
#include "tensors/memory_sink.h"
#include "tensors/tensor_file.h"

namespace kvlane {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void decode(ByteView file) {
  MemorySource source(file);
  MemorySink sink;
  const auto decoded = decode_tensor_file(source, {}, sink);
  const auto described = describe_tensor_file_json(file);
  if (!decoded.ok()) {
    require(!decoded.status().message().empty());
    return;
  }
  require(described.ok());
  require(sink.bytes().size() == decoded->head.file_bytes);
  require(file.size() == decoded->container_bytes);
  // What was accepted can be built again.
  TensorFileHead head = decoded->head;
  const auto built = build_tensor_file_head(head);
  require(built.ok() && head.planes == decoded->head.planes);
  require(std::ranges::equal(*built, file.first(built->size())));
}

void put_checksum(std::span<std::byte> at, ByteView of) {
  const std::uint64_t checksum = XXH3_64bits(of.data(), of.size());
  std::memcpy(at.data(), &checksum, sizeof(checksum));
}

// The end of a part of 64 bytes.
void repair_part(std::span<std::byte> part) {
  put_checksum(part.subspan(56), ByteView(part).first(56));
}

// Puts all checksums right but those of planes of the original, as far as sizes go.
void repair(std::span<std::byte> file) {
  if (file.size() < kTensorFileHeaderBytes + kTensorFileEndBytes) return;
  std::uint32_t table_bytes = 0;
  std::memcpy(&table_bytes, file.data() + 36, sizeof(table_bytes));
  if (table_bytes > file.size() - kTensorFileHeaderBytes) return;
  put_checksum(file.subspan(48), ByteView(file).subspan(kTensorFileHeaderBytes, table_bytes));
  repair_part(file.first(kTensorFileHeaderBytes));
  std::uint64_t chain = 0;
  std::memcpy(&chain, file.data() + 56, sizeof(chain));
  std::span<std::byte> rest = file.subspan(kTensorFileHeaderBytes + table_bytes);
  while (rest.size() >= kTensorFileRecordBytes + kTensorFileEndBytes) {
    std::uint32_t coded_bytes = 0;
    std::memcpy(&coded_bytes, rest.data() + 8, sizeof(coded_bytes));
    const std::size_t bytes = kTensorFileRecordBytes + coded_bytes + record_padding(coded_bytes);
    if (bytes > rest.size()) return;
    const ByteView coded = ByteView(rest).subspan(kTensorFileRecordBytes, coded_bytes);
    put_checksum(rest.subspan(16), coded);
    if (rest[12] == std::byte{0}) put_checksum(rest.subspan(24), coded);
    repair_part(rest.first(kTensorFileRecordBytes));
    std::uint64_t record_checksum = 0;
    std::memcpy(&record_checksum, rest.data() + 56, sizeof(record_checksum));
    chain = next_in_chain(chain, record_checksum);
    rest = rest.subspan(bytes);
  }
  if (rest.size() != kTensorFileEndBytes) return;
  std::memcpy(rest.data() + 24, &chain, sizeof(chain));
  repair_part(rest);
}

void round_trip(ByteView bytes, const TensorFileEncoding& encoding) {
  MemorySource source(bytes);
  MemorySink file;
  if (!encode_tensor_file(source, encoding, {}, file).ok()) return;
  MemorySource coded(file.bytes());
  MemorySink back;
  require(decode_tensor_file(coded, {}, back).ok());
  require(std::ranges::equal(back.bytes(), bytes));
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  // A heap copy of the exact size, so that AddressSanitizer sees every byte read too many.
  const auto copy = std::make_unique<std::byte[]>(size);
  if (size > 0) std::memcpy(copy.get(), data, size);
  const std::span<std::byte> bytes(copy.get(), size);
  decode(bytes);
  // One of the three for each input: they are what takes the time.
  if (size % 3 == 0) round_trip(bytes, {});
  if (size % 3 == 1) round_trip(bytes, {.original = {.type = ElementType::kBf16}});
  if (size % 3 == 2) {
    round_trip(bytes, {.original = {.kind = TensorFileKind::kRaw, .type = ElementType::kFp8E4m3}});
  }
  repair(bytes);
  decode(bytes);
  return 0;
}
