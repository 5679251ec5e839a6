// Sums for ZACK: what a plain reading of the cache and of the queries gives, and the same bits for
// any number of threads and after any interruption.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_zack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "calib/calibration_fixture.h"
#include "cpu/parallel.h"
#include "model/expected_fixture.h"
#include "model/forward.h"
#include "model/forward_fixture.h"

namespace kvlane {
namespace {

using calibration_fixture::tokens_of;
using expected_fixture::kModels;
using forward_fixture::load;

ZackSums sum(const Model& model, std::span<const std::int32_t> tokens,
             const ZackSumOptions& options = {}) {
  auto sums = sum_for_zack(model, tokens, options);
  EXPECT_TRUE(sums.ok()) << sums.status().message();
  return std::move(*sums);
}

void expect_equal(const KvGrams& a, const KvGrams& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  for (int part = 0; part < kGramParts; ++part) EXPECT_EQ(a.sums[part], b.sums[part]) << part;
}

// Adds a row to a matrix [d][d] in the order in which one would write it down.
void add(const std::vector<double>& row, double* gram) {
  const std::size_t d = row.size();
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = i; j < d; ++j) gram[i * d + j] += row[i] * row[j];
  }
}

// One sequence in one pass.
KvGrams plain_sums(const Model& model, std::span<const std::int32_t> tokens) {
  const ModelConfig& config = model.config();
  const std::size_t d = config.head_dim;
  const int group = config.heads / config.kv_heads;
  const KvShape shape = config.kv_shape();
  auto pool = BlockPool::create(shape, 8 * shape.block_bytes());
  BlockTable table(*pool);
  EXPECT_TRUE(table.grow(static_cast<int>(tokens.size())).ok());
  const auto forward = std::move(*Forward::create(model, static_cast<int>(tokens.size()), 1));
  KvGrams grams = KvGrams::zero(shape);
  const auto matrix = [&](GramPart part, int layer, int head) {
    const std::size_t index = std::size_t(layer) * config.kv_heads + head;
    return grams.sums[static_cast<int>(part)].data() + index * d * d;
  };
  std::vector<double> row(d);
  const auto on_queries = [&](int layer, std::span<const std::uint16_t> queries, int parts) {
    ASSERT_EQ(queries.size(), tokens.size() * config.heads * parts * d);
    for (std::size_t i = 0; i < tokens.size() * config.heads; ++i) {
      std::fill(row.begin(), row.end(), 0);
      for (std::size_t at = 0; at < parts * d; ++at) {
        row[at % d] += to_float(bf16{queries[i * parts * d + at]});
      }
      add(row, matrix(GramPart::kQ, layer, static_cast<int>(i) % config.heads / group));
    }
  };
  const ForwardSpan span{&table, tokens, 0};
  EXPECT_TRUE(forward->run({&span, 1}, {.on_queries = on_queries}).ok());
  for (int layer = 0; layer < config.layers; ++layer) {
    for (int head = 0; head < config.kv_heads; ++head) {
      for (int token = 0; token < table.tokens(); ++token) {
        const std::uint16_t* const k =
            table.page(token / kBlockTokens, layer, head) + token % kBlockTokens * d;
        for (std::size_t i = 0; i < d; ++i) row[i] = to_float(bf16{k[i]});
        add(row, matrix(GramPart::kK, layer, head));
        for (std::size_t i = 0; i < d; ++i) row[i] = to_float(bf16{k[kBlockTokens * d + i]});
        add(row, matrix(GramPart::kV, layer, head));
      }
    }
  }
  return grams;
}

TEST(SumForZack, AddsKQAndVOfEveryToken) {
  for (const char* const name : {"llama-mha-bf16-tied", "llama-gqa-bf16-llama3-sharded",
                                 "qwen3-gqa-bf16", "llama-mqa-f32"}) {
    SCOPED_TRACE(name);
    const auto model = load(name);
    const auto tokens = tokens_of(*model, 300);  // two passes
    const KvGrams actual = sum(*model, tokens).grams;
    const KvGrams expected = plain_sums(*model, tokens);
    EXPECT_EQ(actual.tokens, tokens.size());
    for (int part = 0; part < kGramParts; ++part) {
      const double largest = *std::ranges::max_element(expected.sums[part]);
      EXPECT_GT(largest, 0);
      for (std::size_t i = 0; i < expected.sums[part].size(); ++i) {
        ASSERT_NEAR(actual.sums[part][i], expected.sums[part][i], 1e-12 * largest) << i;
      }
    }
  }
}

TEST(SumForZack, DoesNotDependOnThreads) {
  const auto model = load("llama-gqa-bf16-llama3-sharded");
  const auto tokens = tokens_of(*model, 700);
  KvGrams before;
  for (const int threads : {1, 3}) {
    const ParallelScope scope(threads);
    const KvGrams grams = sum(*model, tokens).grams;
    if (threads > 1) expect_equal(grams, before);
    before = grams;
  }
}

TEST(SumForZack, KeepsSumsOfTheFirstTokens) {
  const auto model = load("qwen3-gqa-bf16");
  const auto tokens = tokens_of(*model, 2300);
  const ZackSums all = sum(*model, tokens, {.snapshots = true});
  ASSERT_EQ(all.snapshots.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    expect_equal(all.snapshots[i], sum(*model, std::span(tokens).first(1024U << i)).grams);
  }
  EXPECT_TRUE(sum(*model, tokens).snapshots.empty());
}

class InterruptedSum : public testing::Test {
 protected:
  Status run(const std::unique_ptr<Model>& model, std::span<const std::int32_t> tokens,
             bool snapshots, int sequences) const {
    const auto sums = sum_for_zack(
        *model, tokens,
        {.state = state_, .snapshots = snapshots, .stopped = [left = sequences]() mutable {
           return --left == 0;
         }});
    return sums.status();
  }

  const TemporaryDirectory directory_;
  const std::filesystem::path state_ = directory_.path() / "out.partial";
  const std::unique_ptr<Model> model_ = load("qwen3-gqa-bf16");
  const std::vector<std::int32_t> tokens_ = tokens_of(*model_, 2300);  // five sequences
};

TEST_F(InterruptedSum, GoesOnToTheSameBits) {
  EXPECT_EQ(run(model_, tokens_, true, 1).code(), Code::kAborted);
  EXPECT_EQ(run(model_, tokens_, true, 2).code(), Code::kAborted);
  std::uint64_t first = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    if (first == 0) first = done;
    EXPECT_EQ(total, tokens_.size());
  };
  const ZackSums went_on =
      sum(*model_, tokens_, {.state = state_, .snapshots = true, .progress = progress});
  EXPECT_EQ(first, 3 * 512U + 256);
  const ZackSums at_once = sum(*model_, tokens_, {.snapshots = true});
  expect_equal(went_on.grams, at_once.grams);
  ASSERT_EQ(went_on.snapshots.size(), at_once.snapshots.size());
  for (std::size_t i = 0; i < at_once.snapshots.size(); ++i) {
    expect_equal(went_on.snapshots[i], at_once.snapshots[i]);
  }
  // All of it is there: nothing is computed any more.
  expect_equal(sum(*model_, tokens_,
                   {.state = state_,
                    .snapshots = true,
                    .progress = [](std::uint64_t, std::uint64_t) { ADD_FAILURE(); }})
                   .grams,
               at_once.grams);
}

TEST_F(InterruptedSum, RefusesTheStateOfSomethingElse) {
  EXPECT_EQ(run(model_, tokens_, false, 1).code(), Code::kAborted);
  const auto message = [&](const std::unique_ptr<Model>& model,
                           std::span<const std::int32_t> tokens,
                           bool snapshots) { return run(model, tokens, snapshots, 1).message(); };
  const std::string begin = state_.string() + ": this is the state of a calibration ";
  const std::string end = "; delete it to begin anew";
  EXPECT_EQ(message(load("llama-gqa-bf16-llama3-sharded"), tokens_, false),
            begin + "of another model" + end);
  const std::string text = begin + "over another text or number of tokens" + end;
  EXPECT_EQ(message(model_, tokens_of(*model_, 2300, 4), false), text);
  EXPECT_EQ(message(model_, std::span(tokens_).first(2299), false), text);
  EXPECT_EQ(message(model_, tokens_, true),
            begin + "that was begun with or without --report, unlike this one" + end);
  if (best_isa() != Isa::kScalar) {
    auto scalar = Model::load(kModels / "qwen3-gqa-bf16", {.isa = Isa::kScalar});
    ASSERT_TRUE(scalar.ok());
    EXPECT_EQ(message(*scalar, tokens_, false), begin + "with other kernels" + end);
  }
}

TEST_F(InterruptedSum, RefusesADamagedState) {
  EXPECT_EQ(run(model_, tokens_, false, 1).code(), Code::kAborted);
  const auto file = read_text_file(state_, 1 << 24);
  ASSERT_TRUE(file.ok());
  const std::string none =
      state_.string() + ": this is no complete state of a calibration; delete it to go on";
  std::string damaged = *file;
  damaged[damaged.size() / 2] ^= 1;
  for (const std::string& wrong :
       {std::string(), file->substr(0, 20), file->substr(0, file->size() - 1), *file + "x", damaged,
        "Once upon a time" + std::string(200, '.')}) {
    ASSERT_TRUE(write_file(state_, as_byte_view(wrong)).ok());
    const Status status = run(model_, tokens_, false, 1);
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_EQ(status.message(), none);
  }
}

}  // namespace
}  // namespace kvlane
