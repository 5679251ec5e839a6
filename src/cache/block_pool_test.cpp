// The block pool: limits, owners, states, and that nothing leaks.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace kvlane {
namespace {

const KvShape kShape{2, 3, 16, ElementType::kBf16};

BlockPool make_pool(int blocks) {
  auto pool = BlockPool::create(kShape, blocks * kShape.block_bytes() + 100);
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(*pool);
}

TEST(BlockPool, RefusesMemoryThatHoldsNoBlock) {
  const auto pool = BlockPool::create(kShape, kShape.block_bytes() - 1);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().code(), Code::kInvalidArgument);
}

TEST(BlockPool, HandsOutEveryBlockOnceAndThenSaysExhausted) {
  BlockPool pool = make_pool(5);
  std::set<std::uint16_t*> slabs;
  for (int i = 0; i < 5; ++i) {
    const auto id = pool.allocate();
    ASSERT_TRUE(id.ok());
    for (int layer = 0; layer < kShape.layers; ++layer) slabs.insert(pool.slab(*id, layer));
  }
  EXPECT_EQ(slabs.size(), 10U);
  EXPECT_EQ(pool.allocate().status().code(), Code::kExhausted);
}

TEST(BlockPool, PagesOfASlabLieOneAfterAnother) {
  BlockPool pool = make_pool(1);
  const BlockId id = *pool.allocate();
  const std::size_t page = kShape.page_bytes() / 2;
  EXPECT_EQ(pool.page(id, 1, 2), pool.slab(id, 1) + 2 * page);
  EXPECT_EQ(pool.slab(id, 1), pool.slab(id, 0) + 3 * page);
}

TEST(BlockPool, SharedBlocksGoWithTheirLastOwner) {
  BlockPool pool = make_pool(1);
  const BlockId id = *pool.allocate();
  pool.retain(id);
  pool.release(id);
  EXPECT_EQ(pool.blocks_free(), 0);
  pool.release(id);
  EXPECT_EQ(pool.blocks_free(), 1);
}

TEST(BlockTable, GrowsWhollyOrNotAtAll) {
  BlockPool pool = make_pool(3);
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(2 * kBlockTokens).ok());
  BlockTable other(pool);
  EXPECT_EQ(other.grow(2 * kBlockTokens).code(), Code::kExhausted);
  EXPECT_EQ(other.blocks(), 0);
  EXPECT_EQ(pool.blocks_free(), 1);
  EXPECT_TRUE(table.grow(2 * kBlockTokens).ok()) << "already there";
  EXPECT_TRUE(table.grow(2 * kBlockTokens + 1).ok());
  EXPECT_EQ(pool.blocks_free(), 0);
}

TEST(BlockTable, SealsBlocksThatAreComplete) {
  BlockPool pool = make_pool(3);
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(150).ok());
  table.set_tokens(63);
  EXPECT_EQ(pool.state(table.id(0)), BlockState::kOpen);
  table.set_tokens(64);
  EXPECT_EQ(pool.state(table.id(0)), BlockState::kSealed);
  table.set_tokens(150);
  EXPECT_EQ(pool.state(table.id(1)), BlockState::kSealed);
  EXPECT_EQ(pool.state(table.id(2)), BlockState::kOpen);
}

TEST(BlockTable, ReturnsItsBlocksWhereverItGoes) {
  BlockPool pool = make_pool(4);
  {
    BlockTable table(pool);
    ASSERT_TRUE(table.grow(200).ok());
    BlockTable moved(std::move(table));
    EXPECT_EQ(pool.blocks_free(), 0);
    BlockTable assigned(pool);
    assigned = std::move(moved);
    EXPECT_EQ(assigned.blocks(), 4);
    assigned.clear();
    EXPECT_EQ(pool.blocks_free(), 4);
    ASSERT_TRUE(assigned.grow(65).ok());
  }
  EXPECT_EQ(pool.blocks_free(), 4);
}

}  // namespace
}  // namespace kvlane
