// Forward passes of sequences that keep some tokens of their prompt only: near the whole cache
// while nothing is missing, and the same bits in any chunks and company.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <span>

#include "base/test_results.h"
#include "cache/sparse_cache.h"
#include "cpu/parallel.h"
#include "model/forward.h"
#include "model/forward_fixture.h"
#include "model/model.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using Row = std::vector<float>;
using forward_fixture::load;
using forward_fixture::random_tokens;
using forward_fixture::same_bits;

constexpr int kSparsePrompt = 200;
constexpr int kSparseTokens = 280;
constexpr int kSparseBlocks = 16;
constexpr int kSparseRowsMax = 512;

// One sequence; without a rule its cache keeps everything.
class Reader {
 public:
  Reader(const Model& model, const char* rule, const char* format)
      : shape_(model.config().kv_shape()),
        format_(make_format(format)),
        rows_(take(BlockPool::create(shape_, kSparseBlocks * shape_.block_bytes()))),
        sealed_(take(BlockPool::create_sealed(
            shape_, format_ ? format_->slab_sizes() : SlabSizes(shape_.layers, 64),
            kSparseBlocks << 20))),
        table_(format_ ? BlockTable(sealed_, rows_, {}) : BlockTable(rows_)),
        layout_(take(SparseLayout::create(shape_, format_.get()))),
        forward_(take(Forward::create(model, kSparseRowsMax, kSparseRowsMax, format_.get()))) {
    if (rule != nullptr) sparse_.emplace(layout_, take(make_eviction_rule(rule)));
  }

  Forward& forward() { return *forward_; }
  BlockPool& pool() { return table_.pool(); }
  SparseCache& sparse() { return *sparse_; }
  BlockTable& table() { return table_; }
  BlockTable new_table() { return format_ ? BlockTable(sealed_, rows_, {}) : BlockTable(rows_); }

  ForwardSpan span(std::span<const std::int32_t> tokens) {
    const bool evicted = sparse_ && sparse_->evicted();
    if (!evicted) {
      EXPECT_TRUE(table_.grow(table_.tokens() + static_cast<int>(tokens.size())).ok());
    }
    return {&table_, tokens, static_cast<int>(tokens.size()), false, sparse_ ? &*sparse_ : nullptr};
  }

  // Logits after each of the tokens, which go through the model `chunk` at a time.
  std::vector<Row> read(std::span<const std::int32_t> tokens, int chunk) {
    std::vector<Row> logits;
    for (std::size_t at = 0; at < tokens.size(); at += chunk) {
      const auto part = tokens.subspan(at, std::min<std::size_t>(chunk, tokens.size() - at));
      const ForwardSpan next = span(part);
      const Status status = forward_->run({&next, 1}, {});
      EXPECT_TRUE(status.ok()) << status.message();
      for (std::size_t i = 0; i < part.size(); ++i) {
        const auto row = forward_->logits(static_cast<int>(i));
        logits.emplace_back(row.begin(), row.end());
      }
    }
    return logits;
  }

 private:
  std::shared_ptr<const KvFormat> make_format(const char* text) {
    if (text == nullptr) return nullptr;
    KvTables tables;
    tables_fixture::add_zack_tables(shape_, true, tables);
    return take(make_kv_format(text, {.shape = shape_, .tables = &tables, .isa = best_isa()}));
  }

  const KvShape shape_;
  const std::shared_ptr<const KvFormat> format_;
  BlockPool rows_;
  BlockPool sealed_;
  BlockTable table_;
  const SparseLayout layout_;
  std::optional<SparseCache> sparse_;
  std::unique_ptr<Forward> forward_;
};

double relative_distance(const Row& a, const Row& b) {
  double square = 0;
  double off = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += double{b[i]} * b[i];
    off += double{a[i] - b[i]} * (a[i] - b[i]);
  }
  return std::sqrt(off / square);
}

const char* const kSparseModels[] = {"llama-gqa-bf16-llama3-sharded", "llama-mqa-f32",
                                     "qwen3-gqa-bf16"};

// The first token behind a prompt that is kept whole reads what it would read anyway, in other
// partial sums. The next one finds a token gone.
TEST(SparseForward, KeepingEverythingIsTheWholeCache) {
  for (const char* name : kSparseModels) {
    const auto model = load(name);
    const auto tokens = random_tokens(kSparseTokens, model->config().vocab, 1);
    const std::span<const std::int32_t> all(tokens);
    Reader whole(*model, nullptr, nullptr);
    const auto expected = whole.read(all.first(kSparsePrompt + 2), kSparsePrompt + 2);
    for (const char* rule : {"h2o:keep=1", "keyformer:keep=1"}) {
      Reader run(*model, rule, nullptr);
      const auto prompt = run.read(all.first(kSparsePrompt), kSparsePrompt);
      for (int i = 0; i < kSparsePrompt; ++i) ASSERT_TRUE(same_bits(prompt[i], expected[i])) << i;
      ASSERT_TRUE(run.sparse().evict(run.table()).ok());
      const auto behind = run.read(all.subspan(kSparsePrompt, 2), 2);
      // Now and then a value rounds otherwise; see CodedForward.
      EXPECT_LT(relative_distance(behind[0], expected[kSparsePrompt]), 0x1p-9)
          << name << " " << rule;
      EXPECT_GT(relative_distance(behind[1], expected[kSparsePrompt + 1]), 0)
          << name << " " << rule;
    }
  }
}

TEST(SparseForward, ChunksThreadsAndCompanyChangeNoBit) {
  struct Case {
    const char* rule;
    const char* format;
  };
  for (const char* name : kSparseModels) {
    const auto model = load(name);
    const auto tokens = random_tokens(kSparseTokens, model->config().vocab, 1);
    const auto others = random_tokens(kSparseTokens, model->config().vocab, 2);
    const std::span<const std::int32_t> all(tokens);
    for (const Case what : {Case{"h2o:keep=0.3", nullptr}, Case{"keyformer:keep=0.4", nullptr},
                            Case{"keyformer:keep=0.4", "zack:keep=0.6"}}) {
      SCOPED_TRACE(std::string(name) + " " + what.rule);
      // Heads of 16 dimensions keep all.
      if (what.format != nullptr && model->config().head_dim < 32) continue;
      Reader steps(*model, what.rule, what.format);
      (void)steps.read(all.first(kSparsePrompt), 1);
      ASSERT_TRUE(steps.sparse().evict(steps.table()).ok());
      const auto expected = steps.read(all.subspan(kSparsePrompt), 1);
      for (const int threads : {1, 3}) {
        set_parallel_threads(threads);
        Reader run(*model, what.rule, what.format);
        (void)run.read(all.first(kSparsePrompt), threads == 1 ? 70 : kSparsePrompt);
        const int before = run.pool().blocks_free();
        ASSERT_TRUE(run.sparse().evict(run.table()).ok());
        EXPECT_EQ(run.pool().blocks_free(), before + 4 - run.sparse().blocks());
        // Beside another sequence, which keeps everything.
        BlockTable other = run.new_table();
        ASSERT_TRUE(other.grow(100).ok());
        const int half = (kSparseTokens - kSparsePrompt) / 2;
        const ForwardSpan batch[] = {{&other, std::span(others).first(100), 0},
                                     run.span(all.subspan(kSparsePrompt, half))};
        ASSERT_TRUE(run.forward().run(batch, {}).ok());
        EXPECT_EQ(other.tokens(), 100);
        EXPECT_EQ(run.sparse().tokens(), kSparsePrompt + half);
        for (int i = 0; i < half; ++i) {
          const auto row = run.forward().logits(i);
          ASSERT_TRUE(same_bits({row.begin(), row.end()}, expected[i])) << i;
        }
        const auto rest = run.read(all.subspan(kSparsePrompt + half), 7);
        for (std::size_t i = 0; i < rest.size(); ++i) {
          ASSERT_TRUE(same_bits(rest[i], expected[half + i])) << half + i;
        }
      }
      set_parallel_threads(2);
    }
  }
}

}  // namespace
}  // namespace kvlane
