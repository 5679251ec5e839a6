// Pages that come back, to whom they go, and how many are kept.
// SPDX-License-Identifier: Apache-2.0
#include "store/spare_pages.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlane {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

PageBuffer taken(SparePages& spare, std::size_t bytes) {
  auto buffer = spare.take(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  EXPECT_EQ(buffer->bytes(), bytes);
  return std::move(*buffer);
}

TEST(SparePages, WhatComesBackIsUsedForTheSameSizeAlone) {
  const auto spare = std::make_shared<SparePages>();
  PageBuffer buffer = taken(*spare, kMiB);
  buffer.data()[0] = std::byte{7};
  const std::byte* const where = buffer.data();
  spare->give(std::move(buffer));
  EXPECT_NE(taken(*spare, 2 * kMiB).data(), where);
  const PageBuffer again = taken(*spare, kMiB);
  EXPECT_EQ(again.data(), where);
  EXPECT_EQ(again.data()[0], std::byte{7});
  EXPECT_NE(taken(*spare, kMiB).data(), where);
}

TEST(SparePages, SizesThatDifferALittleShareBuffers) {
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{40960}, kMiB, 17 * kMiB}) {
    EXPECT_EQ(SparePages::rounded(bytes), bytes);
  }
  for (std::size_t bytes = 4096; bytes < 3 * kMiB; bytes += 4096) {
    const std::size_t rounded = SparePages::rounded(bytes);
    ASSERT_GE(rounded, bytes);
    ASSERT_LE((rounded - bytes) * 16, bytes);
    ASSERT_EQ(rounded % 4096, 0u);
  }
  const auto spare = std::make_shared<SparePages>();
  PageBuffer buffer = std::move(*spare->take(kMiB - 8192));
  EXPECT_EQ(buffer.bytes(), kMiB);
  const std::byte* const where = buffer.data();
  spare->give(std::move(buffer));
  EXPECT_EQ(spare->take(kMiB - 20480)->data(), where);
}

TEST(SparePages, TheLastOwnerGivesBackEvenIfNobodyElseIsLeft) {
  auto spare = std::make_shared<SparePages>();
  auto first = spare->shared(taken(*spare, kMiB));
  auto second = first;
  const std::byte* const where = first->data();
  first.reset();
  EXPECT_NE(taken(*spare, kMiB).data(), where);
  second.reset();
  PageBuffer again = taken(*spare, kMiB);
  EXPECT_EQ(again.data(), where);
  const auto last = spare->shared(std::move(again));
  spare.reset();
  last->data()[kMiB - 1] = std::byte{1};
}

TEST(SparePages, KeepsSixteenMiBOfThoseThatCameLast) {
  const auto spare = std::make_shared<SparePages>();
  std::vector<PageBuffer> buffers;
  for (int i = 0; i < 20; ++i) buffers.push_back(taken(*spare, kMiB));
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].data()[0] = std::byte(i + 1);
    spare->give(std::move(buffers[i]));
  }
  // The oldest that are left come first; fresh pages are zero.
  for (int i = 4; i < 20; ++i) {
    buffers.push_back(taken(*spare, kMiB));
    EXPECT_EQ(buffers.back().data()[0], std::byte(i + 1));
  }
  EXPECT_EQ(taken(*spare, kMiB).data()[0], std::byte{0});
  spare->give(PageBuffer());
  spare->give(taken(*spare, 17 * kMiB));
}

}  // namespace
}  // namespace kvlane
