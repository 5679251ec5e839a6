// Sparse caches: rows that stay move to slots, the prompt's blocks are given back, later tokens
// take the places of those that go.
// SPDX-License-Identifier: Apache-2.0
#include "cache/sparse_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "base/test_results.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

constexpr KvShape kSparseShape{2, 3, 32, ElementType::kBf16};
constexpr int kPrompt = 200;

// Of one place, different from those of all others nearby; a finite BF16 pattern.
std::uint16_t value_of(int token, int layer, int head, bool is_value, int channel) {
  return static_cast<std::uint16_t>(
      (token * 7919 + layer * 1009 + head * 503 + (is_value ? 251 : 0) + channel) % 0x7000);
}

void write_rows(BlockTable& table, int tokens) {
  ASSERT_TRUE(table.grow(tokens).ok());
  for (int token = 0; token < tokens; ++token) {
    for (int layer = 0; layer < kSparseShape.layers; ++layer) {
      for (int head = 0; head < kSparseShape.kv_heads; ++head) {
        std::uint16_t* const k = table.page(token / kBlockTokens, layer, head) +
                                 token % kBlockTokens * kSparseShape.head_dim;
        for (int i = 0; i < kSparseShape.head_dim; ++i) {
          k[i] = value_of(token, layer, head, false, i);
          k[kSparseShape.page_plane_elements() + i] = value_of(token, layer, head, true, i);
        }
      }
    }
  }
  table.set_tokens(tokens);
}

// Some order of importance, another one for each head.
float score_of(int token, int layer, int head) {
  return static_cast<float>((token * 37 + layer * 11 + head * 29) % 211);
}

void score_prompt(SparseCache& cache, int tokens) {
  for (int layer = 0; layer < kSparseShape.layers; ++layer) {
    for (int head = 0; head < kSparseShape.kv_heads; ++head) {
      const auto scores = cache.prompt_scores(layer, head, tokens);
      for (int token = 0; token < tokens; ++token) scores[token] = score_of(token, layer, head);
    }
  }
}

// Rows of slots are those of the positions that slots say.
void expect_rows_in_place(const SparseCache& cache) {
  for (int layer = 0; layer < kSparseShape.layers; ++layer) {
    for (int head = 0; head < kSparseShape.kv_heads; ++head) {
      const HeadSlots& slots = cache.head(layer, head);
      for (int slot = 0; slot < static_cast<int>(slots.positions.size()); ++slot) {
        if (slot == slots.free) continue;
        const std::uint16_t* const page = cache.page(layer, head, slot / kBlockTokens);
        const int row = slot % kBlockTokens * kSparseShape.head_dim;
        for (int i = 0; i < kSparseShape.head_dim; ++i) {
          const int token = slots.positions[slot];
          ASSERT_EQ(page[row + i], value_of(token, layer, head, false, i));
          ASSERT_EQ(page[kBlockTokens * kSparseShape.head_dim + row + i],
                    value_of(token, layer, head, true, i));
        }
      }
    }
  }
}

class SparseCacheTest : public testing::Test {
 protected:
  BlockPool pool_ = take(BlockPool::create(kSparseShape, 8 * kSparseShape.block_bytes()));
  SparseLayout layout_ = take(SparseLayout::create(kSparseShape, nullptr));
  EvictionRule rule_ = *make_eviction_rule("h2o:keep=0.5,recent=0.25");
};

TEST_F(SparseCacheTest, EvictingFreesThePromptsBlocksAndKeepsItsBestRows) {
  BlockTable table(pool_);
  write_rows(table, kPrompt);
  SparseCache cache(layout_, rule_);
  score_prompt(cache, kPrompt);
  EXPECT_EQ(pool_.blocks_free(), 4);
  EXPECT_EQ(cache.bytes_held(), 0U);
  ASSERT_TRUE(cache.evict(table).ok());

  EXPECT_EQ(table.blocks(), 0);
  EXPECT_EQ(cache.blocks(), 2) << "100 tokens and a slot";
  EXPECT_EQ(cache.blocks_for_prompt(kPrompt), 2);
  EXPECT_EQ(pool_.blocks_free(), 6);
  EXPECT_EQ(cache.tokens(), kPrompt);
  EXPECT_EQ(cache.bytes_held(), 100U * 6 * (2 * 32 * 2 + 8));
  for (int layer = 0; layer < kSparseShape.layers; ++layer) {
    for (int head = 0; head < kSparseShape.kv_heads; ++head) {
      std::vector<float> scores(kPrompt);
      for (int token = 0; token < kPrompt; ++token) scores[token] = score_of(token, layer, head);
      const HeadSlots& slots = cache.head(layer, head);
      const auto kept = kept_tokens(scores, {75, 25});
      EXPECT_EQ(std::vector<int>(slots.positions.begin(), slots.positions.end()), kept);
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(slots.scores[i], scores[kept[i]]);
    }
  }
  expect_rows_in_place(cache);
  cache.clear();
  EXPECT_FALSE(cache.evicted());
  EXPECT_EQ(pool_.blocks_free(), 8);
}

TEST_F(SparseCacheTest, LaterTokensTakeThePlacesOfThoseThatGo) {
  BlockTable table(pool_);
  write_rows(table, kPrompt);
  SparseCache cache(layout_, rule_);
  score_prompt(cache, kPrompt);
  ASSERT_TRUE(cache.evict(table).ok());
  for (int token = kPrompt; token < kPrompt + 150; ++token) {
    for (int layer = 0; layer < kSparseShape.layers; ++layer) {
      for (int head = 0; head < kSparseShape.kv_heads; ++head) {
        HeadSlots& slots = cache.head(layer, head);
        const std::set<int> before(slots.positions.begin(), slots.positions.end());
        std::uint16_t k[kSparseShape.head_dim];
        std::uint16_t v[kSparseShape.head_dim];
        for (int i = 0; i < kSparseShape.head_dim; ++i) {
          k[i] = value_of(token, layer, head, false, i);
          v[i] = value_of(token, layer, head, true, i);
        }
        cache.append(layer, head, token, k, v);
        EXPECT_EQ(slots.positions.size(), 101U);
        EXPECT_EQ(slots.free, HeadSlots::kNone);
        for (std::size_t slot = 0; slot < slots.scores.size(); ++slot) {
          if (slots.positions[slot] == token) slots.scores[slot] += score_of(token, layer, head);
        }
        cache.discard(layer, head, token);
        ASSERT_NE(slots.free, HeadSlots::kNone);
        const std::set<int> after(slots.positions.begin(), slots.positions.end());
        for (const int position : after) {
          EXPECT_TRUE(position < 0 || position == token || before.contains(position));
        }
        for (int recent = token - 24; recent <= token; ++recent) {
          EXPECT_TRUE(after.contains(recent));
        }
      }
    }
    cache.set_tokens(token + 1);
  }
  expect_rows_in_place(cache);
  EXPECT_EQ(cache.blocks(), 2);
  EXPECT_EQ(cache.bytes_held(), 100U * 6 * (2 * 32 * 2 + 8)) << "the budget, and no more";
}

TEST_F(SparseCacheTest, WithoutRoomThePromptStays) {
  BlockTable table(pool_);
  write_rows(table, 7 * kBlockTokens);
  SparseCache cache(layout_, *make_eviction_rule("h2o:keep=1"));
  score_prompt(cache, 7 * kBlockTokens);
  EXPECT_EQ(cache.evict(table).code(), Code::kExhausted);
  EXPECT_FALSE(cache.evicted());
  EXPECT_EQ(table.tokens(), 7 * kBlockTokens);
  EXPECT_EQ(pool_.blocks_free(), 1);
}

TEST_F(SparseCacheTest, CopiesHaveBlocksOfTheirOwn) {
  BlockTable table(pool_);
  write_rows(table, kPrompt);
  SparseCache cache(layout_, rule_);
  score_prompt(cache, kPrompt);
  ASSERT_TRUE(cache.evict(table).ok());
  SparseCache copy(layout_, rule_);
  ASSERT_TRUE(copy.copy(cache).ok());
  EXPECT_EQ(pool_.blocks_free(), 4);
  cache.clear();
  EXPECT_EQ(pool_.blocks_free(), 6);
  EXPECT_EQ(copy.tokens(), kPrompt);
  expect_rows_in_place(copy);
  BlockTable rest(pool_);
  ASSERT_TRUE(rest.grow(5 * kBlockTokens).ok());
  SparseCache another(layout_, rule_);
  EXPECT_EQ(another.copy(copy).code(), Code::kExhausted);
  EXPECT_FALSE(another.evicted());
  EXPECT_EQ(pool_.blocks_free(), 1);
}

TEST(SparseLayout, TakesZackAndRefusesOtherFormats) {
  KvTables tables;
  tables_fixture::add_zack_tables(kSparseShape, true, tables);
  const auto layout = [&](const char* text) {
    const auto format = take(make_kv_format(text, {.shape = kSparseShape, .tables = &tables}));
    const auto made = SparseLayout::create(kSparseShape, format.get());
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_EQ(layout("zack:keep=0.5"), "");
  EXPECT_EQ(
      layout("hack"),
      "tokens can be evicted from caches in bf16 and zack, not in 'hack:k=2,v=2', whose slabs "
      "have no room for single tokens");
  EXPECT_EQ(layout("zack:keep=0.5,recent=1"),
            "tokens cannot be evicted from a cache with a window, as 'zack:keep=0.5,recent=1' has");
  EXPECT_EQ(layout("zack:keep=0.5+hack:k=4,v=4"),
            "tokens can be evicted from what zack keeps in 16 bits, not from codes as in "
            "'zack:keep=0.5+hack:k=4,v=4'");
}

}  // namespace
}  // namespace kvlane
