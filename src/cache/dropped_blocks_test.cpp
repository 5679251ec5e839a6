// Tables of sequences whose tokens see no further back than a window: what is behind it is given
// back, and nothing else.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/test_results.h"
#include "cache/table_fixture.h"

namespace kvlane {
namespace {

using table_fixture::kShape;
using table_fixture::kSlabBytes;
using table_fixture::name_of;
using table_fixture::pass;

int used(const BlockPool& pool) { return pool.blocks_total() - pool.blocks_free(); }

std::vector<BlockName> names(int count) {
  std::vector<BlockName> all;
  for (int block = 0; block < count; ++block) all.push_back(name_of(block));
  return all;
}

// A cache in 16 bits, or a coded one.
struct AnyCache {
  explicit AnyCache(bool is_coded, KvWindow kv_window = {})
      : coded(is_coded),
        window(kv_window),
        blocks(is_coded ? take(BlockPool::create_sealed(kShape, {kShape.layers, kSlabBytes},
                                                        20 * 2 * kSlabBytes))
                        : take(BlockPool::create(kShape, 20 * kShape.block_bytes()))),
        rows(take(BlockPool::create(kShape, 20 * kShape.block_bytes()))) {}

  BlockTable table(int sight) {
    BlockTable table = coded ? BlockTable(blocks, rows, window) : BlockTable(blocks);
    table.limit_sight(sight);
    return table;
  }

  const bool coded;
  const KvWindow window;
  BlockPool blocks;
  BlockPool rows;
};

TEST(DroppedBlocks, AreThoseThatNoLaterTokenSees) {
  for (const bool coded : {false, true}) {
    for (const int sight : {64, 65, 100, 128, 129, 300}) {
      for (const int step : {1, 7, 64, 100}) {
        AnyCache cache(coded, {1, 1});
        BlockTable table = cache.table(sight);
        while (table.tokens() + step <= 1000) {
          pass(table, step);
          table.drop_unseen();
          // The next token sees `sight` - 1 before it.
          const int first = std::max(0, table.tokens() - sight + 1) / kBlockTokens;
          ASSERT_EQ(table.gone(), first) << "sight " << sight << " tokens " << table.tokens();
          ASSERT_EQ(used(cache.blocks), blocks_for(table.tokens()) - first);
          for (int block = 0; block < table.blocks(); ++block) {
            ASSERT_EQ(table.id(block) < 0, block < first);
          }
          ASSERT_LE(used(cache.blocks), blocks_for(sight - 1 + step) + 1);
        }
        table.clear();
        EXPECT_EQ(used(cache.blocks), 0);
        EXPECT_EQ(used(cache.rows), 0);
      }
    }
  }
}

TEST(DroppedBlocks, AreNoneWithoutAWindow) {
  AnyCache cache(false);
  BlockTable table = cache.table(0);
  pass(table, 1000);
  table.drop_unseen();
  EXPECT_EQ(table.gone(), 0);
  EXPECT_EQ(used(cache.blocks), 16);
}

// Rows that a KV format's own window keeps are of no use behind the model's.
TEST(DroppedBlocks, TakeTheRowsOfSinksWithThem) {
  AnyCache cache(true, {2, 1});
  BlockTable table = cache.table(128);
  pass(table, 256);
  EXPECT_EQ(used(cache.rows), 3) << "two sinks and one recent";
  table.drop_unseen();
  EXPECT_EQ(table.gone(), 2);
  EXPECT_EQ(used(cache.rows), 1);
}

TEST(DroppedBlocks, AreFoundByOthersUntilTheyAreEvicted) {
  AnyCache cache(false);
  BlockTable table = cache.table(64);
  pass(table, 200);
  table.publish(names(3), 0);
  table.drop_unseen();
  EXPECT_EQ(table.gone(), 2);
  EXPECT_EQ(cache.blocks.blocks_cached(), 2);
  const std::optional<BlockId> found = cache.blocks.find(name_of(0));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(used(cache.blocks), 3);
  cache.blocks.release(*found);
  pass(table, 100);
  table.publish(names(4), 3);
  EXPECT_TRUE(cache.blocks.knows(name_of(3)));
}

TEST(DroppedBlocks, AreGoneInAForkToo) {
  for (const bool coded : {false, true}) {
    AnyCache cache(coded);
    BlockTable table = cache.table(100);
    pass(table, 300);
    table.drop_unseen();
    BlockTable fork = cache.table(100);
    ASSERT_TRUE(fork.fork(table).ok());
    EXPECT_EQ(fork.gone(), table.gone());
    EXPECT_EQ(fork.id(3), table.id(3)) << "complete, so shared";
    EXPECT_EQ(used(cache.blocks), 3);
    pass(fork, 200);
    fork.drop_unseen();
    table.clear();
    EXPECT_EQ(used(cache.blocks), blocks_for(500) - fork.gone());
    fork.clear();
    EXPECT_EQ(used(cache.blocks), 0);
    EXPECT_EQ(used(cache.rows), 0);
  }
}

TEST(DroppedBlocks, MayNeverHaveBeenThere) {
  for (const bool coded : {false, true}) {
    AnyCache cache(coded);
    BlockTable first = cache.table(100);
    pass(first, 500);
    first.publish(names(7), 0);
    const BlockId last = first.id(5);
    first.drop_unseen();

    BlockTable table = cache.table(100);
    table.skip_to(table.first_seen(6 * kBlockTokens));
    EXPECT_EQ(table.gone(), 4);
    EXPECT_EQ(table.tokens(), 4 * kBlockTokens);
    for (int block = 4; block < 6; ++block) {
      table.append_sealed(*cache.blocks.find(name_of(block)));
    }
    EXPECT_EQ(table.id(5), last);
    pass(table, 30);
    EXPECT_EQ(table.tokens(), 6 * kBlockTokens + 30);
    EXPECT_EQ(table.blocks(), 7);
    table.clear();
    EXPECT_EQ(table.tokens(), 0);
    EXPECT_EQ(table.gone(), 0);
    EXPECT_EQ(used(cache.blocks), 8 - first.gone());
  }
}

// Who has blocks for what comes next takes them along.
TEST(DroppedBlocks, AreSkippedInFrontOfEmptyOnes) {
  for (const bool coded : {false, true}) {
    AnyCache cache(coded);
    BlockTable table = cache.table(100);
    pass(table, 128);
    ASSERT_TRUE(table.grow(300).ok());
    ASSERT_TRUE(table.open_rows(140).ok());
    table.skip_to(9);
    EXPECT_EQ(table.blocks(), 9 + 3);
    EXPECT_EQ(used(cache.blocks), 3);
    EXPECT_EQ(table.tokens(), 9 * kBlockTokens);
    EXPECT_GE(table.rows_id(9), 0);
    pass(table, 192);
    EXPECT_EQ(used(cache.blocks), 3);
    table.clear();
    EXPECT_EQ(used(cache.blocks), 0);
    EXPECT_EQ(used(cache.rows), 0);
  }
}

}  // namespace
}  // namespace kvlane
