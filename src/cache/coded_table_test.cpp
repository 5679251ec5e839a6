// Tables of coded caches: when rows come and go beside the sealed slabs.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/test_results.h"
#include "cache/table_fixture.h"

namespace kvlane {
namespace {

using table_fixture::kShape;
using table_fixture::kSlabBytes;
using table_fixture::pass;

struct CodedCache {
  CodedCache(int sealed_blocks, int row_blocks)
      : sealed(take(BlockPool::create_sealed(kShape, {kShape.layers, kSlabBytes},
                                             sealed_blocks * 2 * kSlabBytes))),
        rows(take(BlockPool::create(kShape, row_blocks * kShape.block_bytes()))) {}

  int rows_used() const { return rows.blocks_total() - rows.blocks_free(); }
  int sealed_used() const { return sealed.blocks_total() - sealed.blocks_free(); }

  BlockPool sealed;
  BlockPool rows;
};

TEST(CodedTable, SealedSlabsHaveTheirOwnSize) {
  CodedCache cache(3, 1);
  BlockTable table(cache.sealed, cache.rows, {});
  ASSERT_TRUE(table.grow(3 * kBlockTokens).ok());
  EXPECT_EQ(table.sealed(0, 1) - table.sealed(0, 0), kSlabBytes);
  EXPECT_EQ(std::abs(table.sealed(1, 0) - table.sealed(0, 0)), 2 * kSlabBytes);
  EXPECT_EQ(cache.rows_used(), 0) << "rows come with the pass that writes them";
}

TEST(CodedTable, WhatArrivesFromElsewhereTakesTheRowsThatStay) {
  for (const KvWindow window : {KvWindow{}, KvWindow{1, 1}, KvWindow{0, 2}, KvWindow{9, 9}}) {
    for (const int tokens : {1, 63, 64, 65, 300, 320}) {
      CodedCache cache(6, 6);
      BlockTable computed(cache.sealed, cache.rows, window);
      pass(computed, tokens);
      const int stay = cache.rows_used();
      computed.clear();

      BlockTable arrived(cache.sealed, cache.rows, window);
      ASSERT_TRUE(arrived.grow(tokens).ok());
      ASSERT_TRUE(arrived.open_arriving_rows(tokens).ok());
      EXPECT_EQ(cache.rows_used(), stay) << tokens;
      int as_rows = 0;
      for (int block = 0; block < blocks_for(tokens); ++block) {
        if (!arrived.arrives_as_rows(block, tokens)) continue;
        ++as_rows;
        EXPECT_NE(arrived.rows(block, 0), nullptr);
      }
      EXPECT_EQ(as_rows, stay) << tokens;
      arrived.set_tokens(tokens);
      EXPECT_EQ(cache.rows_used(), stay) << tokens;
    }
  }
}

TEST(CodedTable, WhatArrivesTakesAllItsRowsOrNone) {
  CodedCache cache(6, 2);
  BlockTable table(cache.sealed, cache.rows, {1, 1});
  ASSERT_TRUE(table.grow(300).ok());
  EXPECT_EQ(table.open_arriving_rows(300).code(), Code::kExhausted);
  EXPECT_EQ(cache.rows_used(), 0);
}

TEST(CodedTable, RowsGoWhenABlockIsComplete) {
  CodedCache cache(4, 3);
  BlockTable table(cache.sealed, cache.rows, {});
  pass(table, 150);
  EXPECT_EQ(cache.rows_used(), 1) << "the open block's";
  EXPECT_EQ(cache.sealed.state(table.id(1)), BlockState::kSealed);
  EXPECT_EQ(cache.sealed.state(table.id(2)), BlockState::kOpen);
  pass(table, 42);
  EXPECT_EQ(cache.rows_used(), 0) << "192 tokens are three complete blocks";
  table.clear();
  EXPECT_EQ(cache.sealed_used(), 0);
}

TEST(CodedTable, AWindowKeepsRowsAsLongAsAQueryMayReadThem) {
  // Whatever the steps, rows that the next token's query reads are there, and no others.
  for (const KvWindow window : {KvWindow{0, 0}, KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}}) {
    for (const int step : {1, 63, 64, 65, 200}) {
      CodedCache cache(16, 16);
      BlockTable table(cache.sealed, cache.rows, window);
      while (table.tokens() + step <= 16 * kBlockTokens) {
        pass(table, step);
        const int own = table.tokens() / kBlockTokens;
        int expected = table.tokens() % kBlockTokens != 0;
        for (int block = 0; block < own; ++block) expected += window.reads_rows(block, own);
        ASSERT_EQ(cache.rows_used(), expected)
            << "sink " << window.sink << " recent " << window.recent << " step " << step
            << " tokens " << table.tokens();
      }
    }
  }
}

TEST(CodedTable, RowsKeepTheirPlaceWhileABlockFills) {
  CodedCache cache(2, 2);
  BlockTable table(cache.sealed, cache.rows, {});
  pass(table, 10);
  std::uint16_t* rows = table.rows(0, 1);
  EXPECT_EQ(table.page(0, 1, 2), rows + 2 * 2 * kShape.page_plane_elements());
  pass(table, 20);
  EXPECT_EQ(table.rows(0, 1), rows);
}

TEST(CodedTable, WithoutRoomForRowsNothingIsTaken) {
  CodedCache cache(8, 2);
  BlockTable table(cache.sealed, cache.rows, {});
  ASSERT_TRUE(table.grow(3 * kBlockTokens).ok());
  const Status status = table.open_rows(3 * kBlockTokens);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.message().find("for 3 more KV blocks, there are some for 2"), std::string::npos)
      << status.message();
  EXPECT_EQ(cache.rows_used(), 0);
  EXPECT_TRUE(table.open_rows(2 * kBlockTokens).ok());
}

TEST(CodedTable, AForkSharesSealedBlocksAndCopiesOpenRows) {
  CodedCache cache(6, 4);
  BlockTable table(cache.sealed, cache.rows, {0, 1});
  pass(table, 150);
  table.rows(2, 1)[5] = 77;
  BlockTable other(cache.sealed, cache.rows, {0, 1});
  ASSERT_TRUE(other.fork(table).ok());
  EXPECT_EQ(other.id(0), table.id(0));
  EXPECT_EQ(other.rows(1, 0), table.rows(1, 0)) << "in the window";
  EXPECT_NE(other.id(2), table.id(2));
  EXPECT_NE(other.rows(2, 1), table.rows(2, 1));
  EXPECT_EQ(other.rows(2, 1)[5], 77);
  table.clear();
  pass(other, 100);
  other.clear();
  EXPECT_EQ(cache.rows_used(), 0);
  EXPECT_EQ(cache.sealed_used(), 0);
}

TEST(CodedTable, AForkThatFindsNoRoomLeavesNothingBehind) {
  for (const auto& [sealed, rows] : {std::pair(1, 2), std::pair(2, 1)}) {
    CodedCache cache(sealed, rows);
    BlockTable table(cache.sealed, cache.rows, {});
    pass(table, 10);
    BlockTable other(cache.sealed, cache.rows, {});
    EXPECT_EQ(other.fork(table).code(), Code::kExhausted);
    EXPECT_EQ(other.blocks(), 0);
    EXPECT_EQ(cache.rows_used(), 1);
    EXPECT_EQ(cache.sealed_used(), 1);
  }
}

TEST(CodedTable, SealedBlocksComeFromElsewhere) {
  CodedCache cache(4, 2);
  BlockTable table(cache.sealed, cache.rows, {});
  pass(table, kBlockTokens);
  cache.sealed.publish(table.id(0), BlockName{});

  BlockTable other(cache.sealed, cache.rows, {});
  other.append_sealed(*cache.sealed.find(BlockName{}));
  EXPECT_EQ(other.tokens(), kBlockTokens);
  pass(other, 5);
  EXPECT_EQ(cache.rows_used(), 1);

  BlockTable third(cache.sealed, cache.rows, {});
  ASSERT_TRUE(third.grow(10).ok());
  ASSERT_TRUE(third.open_rows(10).ok());
  third.adopt_next(*cache.sealed.find(BlockName{}));
  EXPECT_EQ(third.id(0), table.id(0));
  EXPECT_EQ(cache.rows_used(), 1) << "those of the block it replaced went";
}

}  // namespace
}  // namespace kvlane
