// A header of fixed size, sums as they lie in memory, and a SHA-256 of all that.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>

#include "base/bytes.h"
#include "base/file.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

constexpr std::string_view kMagic = "KVLZACK1";

Result<Bytes> header_of(const ZackStateKey& key, const KvShape& shape) {
  KVLANE_ASSIGN(const Sha256Digest tokens, sha256(std::as_bytes(key.tokens)));
  ByteWriter writer;
  writer.write_bytes(as_byte_view(kMagic));
  writer.write_bytes(key.model);
  writer.write_bytes(tokens);
  for (const int value : {static_cast<int>(key.isa), static_cast<int>(key.snapshots), shape.layers,
                          shape.kv_heads, shape.head_dim}) {
    writer.write(static_cast<std::uint32_t>(value));
  }
  return writer.take();
}

void write_grams(const KvGrams& grams, ByteWriter& writer) {
  writer.write(grams.tokens);
  for (const auto& sums : grams.sums) writer.write_bytes(std::as_bytes(std::span(sums)));
}

KvGrams read_grams(const KvShape& shape, ByteReader& reader) {
  KvGrams grams = KvGrams::zero(shape);
  grams.tokens = reader.read<std::uint64_t>();
  for (auto& sums : grams.sums) {
    const ByteView bytes = reader.read_bytes(sums.size() * sizeof(double));
    if (!bytes.empty()) std::memcpy(sums.data(), bytes.data(), bytes.size());
  }
  return grams;
}

// Which part of the two headers differs first, as a sentence tells it.
const char* difference(ByteView found, ByteView wanted) {
  const auto differs = [&](std::size_t first, std::size_t count) {
    return !std::ranges::equal(found.subspan(first, count), wanted.subspan(first, count));
  };
  const std::size_t model = kMagic.size();
  const std::size_t tokens = model + sizeof(ModelIdentity);
  const std::size_t isa = tokens + sizeof(Sha256Digest);
  if (differs(model, sizeof(ModelIdentity))) return "of another model";
  if (differs(tokens, sizeof(Sha256Digest))) return "over another text or number of tokens";
  if (differs(isa, sizeof(std::uint32_t))) return "with other kernels";
  return "that was begun with or without --report, unlike this one";
}

Result<ZackSums> parse(ByteView file, ByteView header, const KvShape& shape) {
  constexpr const char* kNone = "this is no complete state of a calibration; delete it to go on";
  const std::size_t digest = sizeof(Sha256Digest);
  if (file.size() < header.size() + digest || as_text(file.first(kMagic.size())) != kMagic) {
    return corrupt(kNone);
  }
  const ByteView body = file.first(file.size() - digest);
  KVLANE_ASSIGN(const Sha256Digest actual, sha256(body));
  if (!std::ranges::equal(actual, file.last(digest))) return corrupt(kNone);
  if (!std::ranges::equal(body.first(header.size()), header)) {
    return invalid_argument(std::string("this is the state of a calibration ") +
                            difference(body, header) + "; delete it to begin anew");
  }
  ByteReader reader(body.subspan(header.size()));
  ZackSums sums{.grams = read_grams(shape, reader), .snapshots = {}};
  while (!reader.failed() && reader.remaining() > 0) {
    sums.snapshots.push_back(read_grams(shape, reader));
  }
  if (reader.failed()) return corrupt(kNone);
  return sums;
}

}  // namespace

Status save_zack_state(const std::filesystem::path& path, const ZackStateKey& key,
                       const ZackSums& sums) {
  const KvGrams& grams = sums.grams;
  KVLANE_ASSIGN(const Bytes header,
                header_of(key, {grams.layers, grams.kv_heads, grams.head_dim, ElementType::kBf16}));
  ByteWriter writer;
  writer.write_bytes(header);
  write_grams(grams, writer);
  for (const KvGrams& snapshot : sums.snapshots) write_grams(snapshot, writer);
  KVLANE_ASSIGN(const Sha256Digest digest, sha256(writer.bytes()));
  writer.write_bytes(digest);
  return write_file(path, writer.bytes());
}

Result<std::optional<ZackSums>> load_zack_state(const std::filesystem::path& path,
                                                const ZackStateKey& key, const KvShape& shape) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::optional<ZackSums>();
  KVLANE_ASSIGN(const MappedFile file, MappedFile::open(path));
  KVLANE_ASSIGN(const Bytes header, header_of(key, shape));
  auto sums = parse(file.bytes(), header, shape);
  if (!sums.ok()) return sums.status().with_context(path.string());
  return std::optional<ZackSums>(std::move(*sums));
}

}  // namespace kvlane
