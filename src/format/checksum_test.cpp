// Checksums against libxxhash's plain functions.
// SPDX-License-Identifier: Apache-2.0
#include "format/checksum.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace kvlane {
namespace {

Bytes content(std::size_t bytes) {
  Bytes all(bytes);
  std::uint32_t state = 1;
  for (std::byte& byte : all) byte = std::byte((state = state * 1664525 + 1013904223) >> 24);
  return all;
}

TEST(Checksum, IsXxh3OfAnyLengthAndPlace) {
  const Bytes bytes = content(5000);
  for (std::size_t length = 0; length <= 2100; ++length) {
    const ByteView part = ByteView(bytes).subspan(length % 67, length);
    ASSERT_EQ(xxh3_64(part), XXH3_64bits(part.data(), part.size())) << length;
  }
  EXPECT_EQ(xxh3_64({}), 0x2D06800538D394C2U);
}

TEST(Checksum, LongOnesComeInPieces) {
  const Bytes bytes = content(300'001);
  const XXH128_hash_t whole = XXH3_128bits(bytes.data(), bytes.size());
  XXH128_canonical_t expected;
  XXH128_canonicalFromHash(&expected, whole);
  Xxh3Of128 hash;
  ASSERT_TRUE(hash.ok());
  for (const std::size_t piece : {std::size_t{7}, std::size_t{4096}, bytes.size()}) {
    hash.restart();
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hash.add(ByteView(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    const auto digest = hash.digest();
    EXPECT_EQ(std::memcmp(digest.data(), expected.digest, digest.size()), 0) << piece;
  }
}

}  // namespace
}  // namespace kvlane
