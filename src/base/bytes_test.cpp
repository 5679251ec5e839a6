// Reading and writing of byte fields, and arithmetic on sizes that strangers state.
// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/checked.h"

namespace kvlane {
namespace {

TEST(Bytes, FieldsAreLittleEndianAndComeBack) {
  ByteWriter writer;
  writer.write(std::uint8_t{0x01});
  writer.write(std::uint16_t{0x0302});
  writer.write(std::uint32_t{0x07060504});
  writer.write(std::uint64_t{0x0F0E0D0C0B0A0908});
  writer.write_bytes(as_byte_view("end"));
  const Bytes bytes = writer.take();
  ASSERT_EQ(bytes.size(), 18U);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(bytes[i], std::byte(i + 1)) << i;

  ByteReader reader(bytes);
  EXPECT_EQ(reader.read<std::uint8_t>(), 0x01);
  EXPECT_EQ(reader.read<std::uint16_t>(), 0x0302);
  EXPECT_EQ(reader.read<std::uint32_t>(), 0x07060504U);
  EXPECT_EQ(reader.read<std::uint64_t>(), 0x0F0E0D0C0B0A0908U);
  EXPECT_EQ(reader.remaining(), 3U);
  EXPECT_EQ(as_text(reader.read_bytes(3)), "end");
  EXPECT_EQ(reader.remaining(), 0U);
  EXPECT_FALSE(reader.failed());
}

TEST(Bytes, ReadingPastTheEndFailsForGoodAndGivesZeros) {
  // A heap block of exactly 5 bytes: AddressSanitizer sees a byte read too many.
  const auto block = std::make_unique<std::byte[]>(5);
  std::fill_n(block.get(), 5, std::byte{0xFF});
  ByteReader reader({block.get(), 5});
  EXPECT_EQ(reader.read<std::uint32_t>(), 0xFFFFFFFFU);
  EXPECT_EQ(reader.read<std::uint16_t>(), 0U);
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(reader.read<std::uint8_t>(), 0U) << "one byte is left, but a field was missed";
  EXPECT_TRUE(reader.read_bytes(1).empty());
}

TEST(Bytes, AbsurdCountsAreRefused) {
  const Bytes bytes(3);
  for (const std::size_t count : {std::size_t{4}, std::numeric_limits<std::size_t>::max()}) {
    ByteReader reader(bytes);
    EXPECT_TRUE(reader.read_bytes(1).size() == 1 && reader.read_bytes(count).empty());
    EXPECT_TRUE(reader.failed());
  }
}

TEST(Bytes, EmptyBuffersCanBeRead) {
  ByteReader reader({});
  EXPECT_TRUE(reader.read_bytes(0).empty());
  EXPECT_FALSE(reader.failed());
  EXPECT_EQ(reader.read<std::uint8_t>(), 0U);
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(as_text({}), "");
}

TEST(Checked, OverflowIsAnAnswer) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_FALSE(checked_add(kMax, 1).has_value());
  EXPECT_FALSE(checked_add(kMax, kMax).has_value());
  EXPECT_EQ(checked_mul(0, kMax), 0U);
  EXPECT_EQ(checked_mul(1, kMax), kMax);
  EXPECT_EQ(checked_mul(0xFFFFFFFF, 0x100000001), kMax);
  EXPECT_FALSE(checked_mul(0x100000000, 0x100000000).has_value());
  EXPECT_FALSE(checked_mul(kMax, 2).has_value());
}

TEST(Checked, CeilDivDoesNotOverflow) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  static_assert(ceil_div(0, 16) == 0 && ceil_div(1, 16) == 1);
  static_assert(ceil_div(16, 16) == 1 && ceil_div(17, 16) == 2);
  EXPECT_EQ(ceil_div(kMax, 1), kMax);
  EXPECT_EQ(ceil_div(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_div(kMax, kMax), 1U);
}

}  // namespace
}  // namespace kvlane
