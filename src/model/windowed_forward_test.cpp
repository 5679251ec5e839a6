// A model whose layers all have a sliding window reads nothing of what is behind it: the memory of
// blocks that are given back may hold anything.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/test_paths.h"
#include "base/test_sanitizers.h"
#include "cpu/parallel.h"
#include "model/sequence_fixture.h"

namespace kvlane {
namespace {

using forward_fixture::random_tokens;
using sequence_fixture::make_format;

constexpr int kWindowedTokens = 500;
constexpr int kWindowedBlocks = 8;

// Makes NaN of all memory that the table does not own.
void poison(BlockPool& pool, const BlockTable& table, bool rows) {
  std::set<BlockId> owned;
  for (int block = 0; block < table.blocks(); ++block) {
    owned.insert(rows ? table.rows_id(block) : table.id(block));
  }
  for (BlockId id = 0; id < pool.blocks_total(); ++id) {
    if (!owned.contains(id)) std::memset(pool.block(id), 0xFF, pool.block_bytes());
  }
}

// The logits behind each chunk.
std::vector<std::vector<float>> run_windowed(const Model& model, const KvFormat* format, int chunk,
                                             bool drops) {
  const KvShape shape = model.config().kv_shape();
  auto rows = take(BlockPool::create(shape, kWindowedBlocks * shape.block_bytes()));
  const SlabSizes sizes = format ? format->slab_sizes() : SlabSizes(shape.layers, 64);
  auto sealed = take(BlockPool::create_sealed(shape, sizes, kWindowedBlocks * sizes.block_bytes()));
  const auto forward = take(Forward::create(model, kWindowedTokens, 1, format));
  BlockTable table = format ? BlockTable(sealed, rows, format->window()) : BlockTable(rows);
  table.limit_sight(model.config().window);
  const auto tokens = random_tokens(sequence_fixture::kTokens, model.config().vocab, 5);
  std::vector<std::vector<float>> logits;
  for (int at = 0; at < kWindowedTokens; at += chunk) {
    std::vector<std::int32_t> next;
    for (int i = at; i < std::min(at + chunk, kWindowedTokens); ++i) {
      next.push_back(tokens[std::size_t(i) % tokens.size()]);
    }
    EXPECT_TRUE(table.grow(at + static_cast<int>(next.size())).ok());
    const ForwardSpan span{&table, next, 1};
    const Status status = forward->run({&span, 1}, {});
    EXPECT_TRUE(status.ok()) << status.message();
    const auto row = forward->logits(0);
    logits.emplace_back(row.begin(), row.end());
    if (!drops) continue;
    table.drop_unseen();
    poison(rows, table, true);
    if (format) poison(sealed, table, false);
  }
  EXPECT_EQ(table.gone() > 0, drops);
  return logits;
}

TEST(WindowedForward, NothingOfWhatIsGivenBackIsRead) {
  const auto model =
      take(Model::load(std::string(kSourceDir) + "/tests/fixtures/models/mistral-gqa-bf16-window",
                       {.isa = best_isa()}));
  for (const char* name :
       {"bf16", "fp8_e4m3", "mxfp4", "int8", "int4", "kivi", "kivi:bits=4,group=64,sink=1", "hack",
        "hack:sink=1,recent=1", "hack:paper", "hack:paper,ktail=code", "hack:p=32,rqe=0",
        "hack:compute=bf16", "zack:keep=0.5", "zack:keep=0.5,sink=1,recent=1",
        "zack:keep=0.6+hack"}) {
    const auto format = std::string(name) == "bf16" ? nullptr : make_format(*model, name);
    for (const int threads : every_other_if(kSanitized, std::vector{1, 3})) {
      set_parallel_threads(threads);
      for (const int chunk : every_other_if(kSanitized, std::vector{1, 50, 64, 200})) {
        const auto expected = run_windowed(*model, format.get(), chunk, false);
        const auto logits = run_windowed(*model, format.get(), chunk, true);
        ASSERT_EQ(logits.size(), expected.size());
        for (std::size_t i = 0; i < logits.size(); ++i) {
          ASSERT_EQ(0, std::memcmp(logits[i].data(), expected[i].data(),
                                   logits[i].size() * sizeof(float)))
              << name << " chunk " << chunk << " pass " << i << " threads " << threads;
        }
      }
    }
    set_parallel_threads(2);
  }
}

}  // namespace
}  // namespace kvlane
