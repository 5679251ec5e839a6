// Counting exponents and the codebooks that follow, against the plain definition.
// SPDX-License-Identifier: Apache-2.0
#include "codec/exponents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "codec/splitzip.h"

namespace kvlane {
namespace {

Bytes words(const std::vector<std::uint16_t>& values) {
  const ByteView bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(Exponents, AreCountedByType) {
  ExponentCounts counts{};
  // 1.0, -2.0, NaN, +0, a subnormal.
  count_exponents(ElementType::kBf16, words({0x3F80, 0xC000, 0x7FC1, 0x0000, 0x0001}), counts);
  EXPECT_EQ(counts[127], 1U);
  EXPECT_EQ(counts[128], 1U);
  EXPECT_EQ(counts[255], 1U);
  EXPECT_EQ(counts[0], 2U);
  count_exponents(ElementType::kBf16, words({0x3F80}), counts);
  EXPECT_EQ(counts[127], 2U) << "added to what is there";

  counts = {};
  count_exponents(ElementType::kFp16, words({0x3C00, 0xFC00}), counts);  // 1.0, -infinity
  EXPECT_EQ(counts[15], 1U);
  EXPECT_EQ(counts[31], 1U);
  const Bytes eights = {std::byte{0x38}, std::byte{0xB8}};  // S EEEE MMM, S EEEEE MM
  counts = {};
  count_exponents(ElementType::kFp8E4m3, eights, counts);
  EXPECT_EQ(counts[7], 2U);
  counts = {};
  count_exponents(ElementType::kFp8E5m2, eights, counts);
  EXPECT_EQ(counts[14], 2U);
}

TEST(Codebook, HoldsTheMostFrequentInOrder) {
  ExponentCounts counts{};
  for (int e = 100; e < 120; ++e) counts[e] = static_cast<std::uint64_t>(e);
  const Codebook book = codebook_of(ElementType::kBf16, counts);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(book.exponents[i], 104 + i);
  // 100 + ... + 103 of 100 + ... + 119.
  EXPECT_DOUBLE_EQ(coverage(ElementType::kBf16, book, counts), 1 - 406.0 / 2190.0);
}

TEST(Codebook, AmongEqualsTheSmallerAndFilledUpWithTheSmallest) {
  ExponentCounts counts{};
  counts[200] = 1;
  const Codebook book = codebook_of(ElementType::kBf16, counts);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(book.exponents[i], i);
  EXPECT_EQ(book.exponents[15], 200);
  EXPECT_EQ(coverage(ElementType::kBf16, book, counts), 1);
  EXPECT_EQ(coverage(ElementType::kBf16, book, {}), 1) << "of nothing";
}

TEST(Codebook, OfE4m3HasEightEntries) {
  ExponentCounts counts{};
  for (int e = 0; e < 16; ++e) counts[e] = static_cast<std::uint64_t>(16 - e);
  const Codebook book = codebook_of(ElementType::kFp8E4m3, counts);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(book.exponents[i], i);
  for (int i = 8; i < 16; ++i) EXPECT_EQ(book.exponents[i], 0);
  EXPECT_EQ(exponent_values(ElementType::kFp8E4m3), 16);
  EXPECT_EQ(codebook_entries(ElementType::kBf16), 16);
}

// What the codec writes is what this page's arithmetic says it should: the same codebook, the share
// of escapes that its coverage leaves.
TEST(Codebook, IsFoundInTheBodyThatWasWritten) {
  std::vector<std::uint16_t> values;
  for (int i = 0; i < 64 * 128; ++i) {
    const int exponent = i % 100 == 0 ? 60 + i / 100 % 20 : 110 + i % 16;
    values.push_back(static_cast<std::uint16_t>(exponent << 7 | i % 128));
  }
  const PlaneShape shape{ElementType::kBf16, 1, 64, 128};
  const Codec& codec = **find_codec("splitzip");
  Bytes body(codec.bound(shape));
  body.resize(codec.encode(shape, words(values), nullptr, body));
  const auto written = written_codebook(shape, body);
  ASSERT_TRUE(written.has_value());
  ExponentCounts counts{};
  count_exponents(ElementType::kBf16, words(values), counts);
  EXPECT_EQ(written->book.exponents, codebook_of(ElementType::kBf16, counts).exponents);
  EXPECT_NEAR(written->escapes, 1 - coverage(ElementType::kBf16, written->book, counts), 1e-12);
}

TEST(Codebook, IsNotInABodyThatStayedRaw) {
  const PlaneShape shape{ElementType::kBf16, 1, 1, 4};
  const Codec& codec = **find_codec("splitzip");
  Bytes body(codec.bound(shape));
  body.resize(codec.encode(shape, words({1, 2, 3, 4}), nullptr, body));
  EXPECT_FALSE(written_codebook(shape, body).has_value());
  EXPECT_FALSE(written_codebook(shape, {}).has_value());
}

}  // namespace
}  // namespace kvlane
