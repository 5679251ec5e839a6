// The arena keeps what it was given, up to its size.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cache/table_fixture.h"

namespace kvlane {
namespace {

constexpr std::size_t kBytes = 4096;
using table_fixture::name_of;
using Block = std::array<std::byte, kBytes>;

Block block(int i) {
  Block block;
  block.fill(std::byte(i));
  return block;
}

BlockArena make_arena(std::size_t bytes) {
  auto arena = BlockArena::create(kBytes, bytes);
  EXPECT_TRUE(arena.ok());
  return std::move(*arena);
}

TEST(BlockArena, GivesBackWhatWasPutThere) {
  BlockArena arena = make_arena(3 * kBytes + 100);
  EXPECT_EQ(arena.blocks_total(), 3);
  for (int i = 0; i < 3; ++i) arena.put(name_of(i), block(i).data());
  for (int i = 0; i < 3; ++i) {
    Block out{};
    ASSERT_TRUE(arena.get(name_of(i), out.data()));
    EXPECT_EQ(out, block(i));
  }
  Block out{};
  EXPECT_FALSE(arena.get(name_of(3), out.data()));
}

TEST(BlockArena, ForgetsWhatWasWantedLongestAgo) {
  BlockArena arena = make_arena(3 * kBytes);
  for (int i = 0; i < 3; ++i) arena.put(name_of(i), block(i).data());
  Block out{};
  ASSERT_TRUE(arena.get(name_of(0), out.data()));
  arena.put(name_of(1), block(1).data());  // again: it is young now
  arena.put(name_of(3), block(3).data());
  EXPECT_EQ(arena.blocks_used(), 3);
  EXPECT_FALSE(arena.knows(name_of(2)));
  for (const int i : {0, 1, 3}) {
    ASSERT_TRUE(arena.get(name_of(i), out.data()));
    EXPECT_EQ(out, block(i));
  }
}

TEST(BlockArena, KeepsBlocksInMemoryOfTheCaller) {
  std::vector<std::byte> memory(2 * kBytes + 9);
  BlockArena arena = BlockArena::over(kBytes, memory, copy_on_host);
  EXPECT_EQ(arena.blocks_total(), 2);
  for (int i = 1; i < 4; ++i) arena.put(name_of(i), block(i).data());
  EXPECT_FALSE(arena.knows(name_of(1)));
  Block out{};
  ASSERT_TRUE(arena.get(name_of(3), out.data()));
  EXPECT_EQ(out, block(3));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{3}),
            static_cast<std::ptrdiff_t>(kBytes));
}

TEST(BlockArena, WithoutRoomKeepsNothing) {
  BlockArena arena = make_arena(kBytes - 1);
  arena.put(name_of(1), block(1).data());
  EXPECT_EQ(arena.blocks_total(), 0);
  EXPECT_FALSE(arena.knows(name_of(1)));
}

TEST(BlockArena, IsStillRightAfterItMoved) {
  BlockArena first = make_arena(2 * kBytes);
  first.put(name_of(1), block(1).data());
  BlockArena arena = std::move(first);
  arena.put(name_of(2), block(2).data());
  arena.put(name_of(3), block(3).data());
  Block out{};
  EXPECT_FALSE(arena.get(name_of(1), out.data()));
  ASSERT_TRUE(arena.get(name_of(2), out.data()));
  EXPECT_EQ(out, block(2));
}

// A device may refuse a copy, into the arena and out of it.
TEST(BlockArena, ForgetsWhatCouldNotBeCopiedIn) {
  bool fails = false;
  const MemoryCopy copy = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
    return fails ? internal_error("a copy that fails") : copy_on_host(to, from, bytes);
  };
  auto made = BlockArena::create(kBytes, 2 * kBytes, copy);
  ASSERT_TRUE(made.ok());
  BlockArena& arena = *made;
  for (int i = 0; i < 2; ++i) arena.put(name_of(i), block(i).data());
  fails = true;
  arena.put(name_of(2), block(2).data());  // in place of the oldest
  EXPECT_FALSE(arena.knows(name_of(0)));
  EXPECT_FALSE(arena.knows(name_of(2)));
  Block out{};
  EXPECT_FALSE(arena.get(name_of(1), out.data()));
  EXPECT_EQ(out, Block{});
  EXPECT_EQ(arena.blocks_used(), 1);

  fails = false;
  for (int i = 2; i < 4; ++i) arena.put(name_of(i), block(i).data());
  EXPECT_EQ(arena.blocks_used(), 2);
  for (int i = 2; i < 4; ++i) {
    ASSERT_TRUE(arena.get(name_of(i), out.data()));
    EXPECT_EQ(out, block(i));
  }
}

}  // namespace
}  // namespace kvlane
