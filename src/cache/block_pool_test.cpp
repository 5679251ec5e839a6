// The block pool: limits, owners, states, and that nothing leaks.
// SPDX-License-Identifier: Apache-2.0
#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/bytes.h"
#include "cache/table_fixture.h"

namespace kvlane {
namespace {

using table_fixture::kShape;
using table_fixture::name_of;

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

// A table of complete blocks, block i published as name_of(i).
BlockTable publish(BlockPool& pool, int blocks) {
  BlockTable table(pool);
  EXPECT_TRUE(table.grow(blocks * kBlockTokens).ok());
  table.set_tokens(blocks * kBlockTokens);
  std::vector<BlockName> names;
  for (int i = 0; i < blocks; ++i) names.push_back(name_of(i));
  table.publish(names, 0);
  return table;
}

TEST(SharedBlocks, AreFoundWhileOwnedAndAfterwards) {
  BlockPool pool = make_pool(4);
  BlockTable table = publish(pool, 2);
  const BlockId first = table.id(0);
  EXPECT_EQ(pool.find(name_of(0)), first);
  EXPECT_EQ(pool.find(name_of(7)), std::nullopt);
  table.clear();
  EXPECT_EQ(pool.blocks_free(), 3) << "found once, so still owned once";
  EXPECT_EQ(pool.blocks_cached(), 1);
  pool.release(first);
  EXPECT_EQ(pool.blocks_free(), 4);
  EXPECT_EQ(pool.blocks_cached(), 2);
  EXPECT_EQ(pool.find(name_of(0)), first);
  EXPECT_EQ(pool.state(first), BlockState::kSealed);
  EXPECT_EQ(pool.blocks_cached(), 1);
}

TEST(SharedBlocks, GoWhenMemoryIsNeededTheEndOfASequenceFirst) {
  BlockPool pool = make_pool(4);
  std::vector<BlockName> evicted;
  pool.set_on_evict([&](BlockId, const BlockName& gone) { evicted.push_back(gone); });
  publish(pool, 3).clear();
  EXPECT_TRUE(pool.allocate().ok());
  EXPECT_TRUE(evicted.empty()) << "a block was free";
  EXPECT_TRUE(pool.allocate().ok());
  EXPECT_TRUE(pool.allocate().ok());
  EXPECT_EQ(evicted, (std::vector{name_of(2), name_of(1)}));
  EXPECT_FALSE(pool.knows(name_of(2)));
  EXPECT_TRUE(pool.knows(name_of(0)));
  const std::optional<BlockId> kept = pool.find(name_of(0));
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(pool.allocate().status().code(), Code::kExhausted);
  pool.release(*kept);
  EXPECT_TRUE(pool.allocate().ok());
  EXPECT_EQ(evicted.size(), 3U);
}

TEST(SharedBlocks, TheFirstOfANameStays) {
  BlockPool pool = make_pool(4);
  const BlockTable first = publish(pool, 1);
  BlockTable second = publish(pool, 1);
  EXPECT_NE(first.id(0), second.id(0));
  EXPECT_EQ(pool.find(name_of(0)), first.id(0));
  second.clear();
  EXPECT_EQ(pool.blocks_cached(), 0) << "nobody can find the second";
}

TEST(SharedBlocks, AForkSharesWhatIsCompleteAndCopiesTheRest) {
  BlockPool pool = make_pool(4);
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(150).ok());
  table.set_tokens(150);
  std::fill_n(pool.page(table.id(2), 1, 2), 5, std::uint16_t{42});
  BlockTable fork(pool);
  ASSERT_TRUE(fork.fork(table).ok());
  EXPECT_EQ(fork.tokens(), 150);
  EXPECT_EQ(fork.id(0), table.id(0));
  EXPECT_EQ(fork.id(1), table.id(1));
  EXPECT_NE(fork.id(2), table.id(2));
  EXPECT_EQ(pool.page(fork.id(2), 1, 2)[4], 42);
  BlockTable another(pool);
  EXPECT_EQ(another.fork(table).code(), Code::kExhausted);
  EXPECT_EQ(another.blocks(), 0);
  table.clear();
  EXPECT_EQ(pool.blocks_free(), 1);
  fork.clear();
  EXPECT_EQ(pool.blocks_free(), 4);
}

TEST(SharedBlocks, AForkWhoseCopyFailsLeavesNothing) {
  Bytes memory(4 * kShape.block_bytes());
  bool fails = true;
  auto made =
      BlockPool::over(kShape, memory, [&](std::byte* to, const std::byte* from, std::size_t bytes) {
        return fails ? internal_error("a copy that fails") : copy_on_host(to, from, bytes);
      });
  ASSERT_TRUE(made.ok());
  BlockPool& pool = *made;
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(150).ok());
  table.set_tokens(150);
  BlockTable fork(pool);
  EXPECT_EQ(fork.fork(table).code(), Code::kInternal);
  EXPECT_EQ(fork.blocks(), 0);
  EXPECT_EQ(fork.tokens(), 0);
  EXPECT_EQ(pool.blocks_free(), 1);
  fails = false;
  EXPECT_TRUE(fork.fork(table).ok());
  EXPECT_EQ(fork.tokens(), 150);
  table.clear();
  fork.clear();
  EXPECT_EQ(pool.blocks_free(), 4);
}

}  // namespace
}  // namespace kvlane
