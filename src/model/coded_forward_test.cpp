// Forward passes over coded caches: who reads rows and who sealed slabs, and that chunks, batches
// and threads do not matter.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/test_results.h"
#include "cpu/parallel.h"
#include "cpu/tiers_fixture.h"
#include "model/forward.h"
#include "model/forward_fixture.h"
#include "model/model.h"
#include "quant/format_fixture.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using format_fixture::Failing;
using format_fixture::Identity;
using format_fixture::WithoutValues;
using tiers_fixture::tiers;
using LogitsOfChunks = std::vector<std::vector<float>>;
using forward_fixture::load;
using forward_fixture::random_tokens;
using forward_fixture::same_bits;

constexpr int kCodedTokens = 300;
constexpr int kCodedBlocks = 8;
constexpr int kCodedRowsMax = 512;

// Logits after each chunk of the tokens. `format` may be null: a cache of rows.
LogitsOfChunks run(const Model& model, const KvFormat* format, int chunk) {
  const KvShape shape = model.config().kv_shape();
  auto rows = take(BlockPool::create(shape, kCodedBlocks * shape.block_bytes()));
  auto sealed = take(
      BlockPool::create_sealed(shape, format ? format->slab_sizes() : SlabSizes(shape.layers, 64),
                               kCodedBlocks * 1024 * 1024));
  BlockTable table = format ? BlockTable(sealed, rows, format->window()) : BlockTable(rows);
  auto forward = take(Forward::create(model, kCodedRowsMax, 1, format));
  const auto tokens = random_tokens(kCodedTokens, model.config().vocab, 3);
  const std::span<const std::int32_t> all(tokens);
  LogitsOfChunks logits;
  EXPECT_TRUE(table.grow(kCodedTokens).ok());
  for (int at = 0; at < kCodedTokens; at += chunk) {
    const ForwardSpan span{&table, all.subspan(at, std::min(chunk, kCodedTokens - at)), 1};
    const Status status = forward->run({&span, 1}, {});
    EXPECT_TRUE(status.ok()) << status.message();
    const auto row = forward->logits(0);
    logits.emplace_back(row.begin(), row.end());
  }
  return logits;
}

const char* const kCodedModels[] = {"llama-gqa-bf16-llama3-sharded", "llama-mqa-f32",
                                    "mistral-gqa-bf16-window"};

TEST(CodedForward, SlabsThatAreRowsGiveTheBitsOfRows) {
  for (const Isa isa : tiers()) {
    for (const char* name : kCodedModels) {
      const auto model = load(name, isa);
      const auto expected = run(*model, nullptr, 1);
      for (const KvWindow window : {KvWindow{}, KvWindow{1, 0}, KvWindow{1, 2}}) {
        const Identity format(model->config().kv_shape(), window);
        for (const int chunk : {1, 100, kCodedTokens}) {
          const auto logits = run(*model, &format, chunk);
          for (std::size_t i = 0; i < logits.size(); ++i) {
            const std::size_t last = std::min<std::size_t>((i + 1) * chunk, kCodedTokens) - 1;
            ASSERT_TRUE(same_bits(logits[i], expected[last]))
                << name << " " << isa_name(isa) << " chunk " << chunk << " token " << last;
          }
        }
      }
    }
  }
}

TEST(CodedForward, AQueryReadsItsWindowAsRowsAndAllElseSealed) {
  const auto model = load(kCodedModels[0], best_isa());
  const auto rows = run(*model, nullptr, 1);
  for (const KvWindow window : {KvWindow{}, KvWindow{1, 0}, KvWindow{0, 1}, KvWindow{1, 2}}) {
    const WithoutValues format(model->config().kv_shape(), window);
    const auto coded = run(*model, &format, 1);
    // The first block that is neither sink nor recent for some query, and the first such query.
    const int first_own = window.sink + window.recent + 1;
    for (int i = 0; i < kCodedTokens; ++i) {
      ASSERT_EQ(same_bits(coded[i], rows[i]), i / kBlockTokens < first_own)
          << "sink " << window.sink << " recent " << window.recent << " token " << i;
    }
    for (const int threads : {1, 3}) {
      set_parallel_threads(threads);
      for (const int chunk : {7, 64, kCodedTokens}) {
        EXPECT_TRUE(same_bits(run(*model, &format, chunk).back(), coded.back()))
            << "chunk " << chunk << " threads " << threads;
      }
    }
    set_parallel_threads(2);
  }
}

// Formats whose pages attention computes on as they are, beside one that opens them.
class CodedForwardOfModels : public testing::TestWithParam<const char*> {};

TEST_P(CodedForwardOfModels, ChunksAndThreadsChangeNoBit) {
  const auto model = load(GetParam(), best_isa());
  for (const char* name :
       {"hack", "hack:sink=1,recent=1", "hack:k=4,v=4,mix=0", "hack:paper",
        "hack:p=32,round=sr,mix=1,recent=1", "hack:paper,ktail=code", "hack:compute=bf16",
        "hack:paper,compute=dequantise", "hack:p=32,compute=complete", "kivi", "zack:keep=0.6",
        "zack:keep=0.5,sink=1,recent=1", "zack:keep=0.6+hack"}) {
    KvFormatContext context;
    KvTables tables;
    context.shape = model->config().kv_shape();
    context.isa = best_isa();
    context.tables = &tables;
    tables_fixture::add_zack_tables(context.shape, true, tables);
    const auto format = take(make_kv_format(name, context));
    const auto steps = run(*model, format.get(), 1);
    for (const int threads : {1, 3}) {
      set_parallel_threads(threads);
      for (const int chunk : {7, 64, 100, kCodedTokens}) {
        const auto logits = run(*model, format.get(), chunk);
        for (std::size_t i = 0; i < logits.size(); ++i) {
          const std::size_t last = std::min<std::size_t>((i + 1) * chunk, kCodedTokens) - 1;
          ASSERT_TRUE(same_bits(logits[i], steps[last]))
              << name << ", chunk " << chunk << ", threads " << threads << ", token " << last;
        }
      }
    }
    set_parallel_threads(2);
  }
}

INSTANTIATE_TEST_SUITE_P(WithoutAndWithAWindow, CodedForwardOfModels,
                         testing::Values("qwen3-gqa-bf16", "mistral-gqa-bf16-window"));

enum class Basis { kPlain, kReflected, kStretched };

// With all dimensions nothing is lost but what rounding in another basis loses.
TEST(CodedForward, ZackWithAllDimensionsIsTheModel) {
  for (const Isa isa : tiers()) {
    const auto model = load("qwen3-gqa-bf16", isa);
    const auto rows = run(*model, nullptr, 1);
    for (const Basis basis : {Basis::kPlain, Basis::kReflected, Basis::kStretched}) {
      const KvShape shape = model->config().kv_shape();
      KvTables tables;
      tables_fixture::add_zack_tables(shape, basis != Basis::kPlain, tables);
      if (basis == Basis::kStretched) tables_fixture::stretch_zack_rotations(shape, tables);
      const auto format =
          take(make_kv_format("zack:keep=1", {.shape = shape, .tables = &tables, .isa = isa}));
      const auto zack = run(*model, format.get(), 1);
      double square = 0;
      double off = 0;
      for (int token = 0; token < kCodedTokens; ++token) {
        for (std::size_t i = 0; i < rows[token].size(); ++i) {
          square += double{rows[token][i]} * rows[token][i];
          off += double{zack[token][i] - rows[token][i]} * (zack[token][i] - rows[token][i]);
        }
      }
      // In the same basis sums have another order, and now and then a value rounds otherwise. In
      // another one all of K and all queries do.
      EXPECT_LT(std::sqrt(off / square), basis == Basis::kPlain ? 0x1p-9 : 0x1p-6)
          << isa_name(isa) << " " << static_cast<int>(basis);
    }
  }
}

TEST(CodedForward, ASlabThatCannotBeSealedFailsThePassAndLeavesTheTable) {
  const auto model = load(kCodedModels[0], best_isa());
  const KvShape shape = model->config().kv_shape();
  const Failing format(shape, {1, 64});
  auto rows = take(BlockPool::create(shape, kCodedBlocks * shape.block_bytes()));
  auto sealed = take(BlockPool::create_sealed(shape, format.slab_sizes(), kCodedBlocks << 20));
  BlockTable table(sealed, rows, {});
  ASSERT_TRUE(table.grow(kCodedTokens).ok());
  auto forward = take(Forward::create(*model, kCodedRowsMax, 1, &format));
  const auto tokens = random_tokens(kCodedTokens, model->config().vocab, 3);
  const std::span<const std::int32_t> all(tokens);
  const ForwardSpan good{&table, all.first(100), false};
  ASSERT_TRUE(forward->run({&good, 1}, {}).ok());
  const ForwardSpan bad{&table, all.subspan(100, 100), 1};
  const Status status = forward->run({&bad, 1}, {});
  EXPECT_EQ(status.message(), "this slab is bad");
  EXPECT_EQ(table.tokens(), 100);
}

TEST(CodedForward, WithoutRoomForRowsThePassFailsAndLeavesTheTable) {
  const auto model = load(kCodedModels[0], best_isa());
  const KvShape shape = model->config().kv_shape();
  const Identity format(shape);
  auto rows = take(BlockPool::create(shape, 2 * shape.block_bytes()));
  auto sealed = take(BlockPool::create_sealed(shape, format.slab_sizes(), kCodedBlocks << 20));
  BlockTable table(sealed, rows, {});
  ASSERT_TRUE(table.grow(kCodedTokens).ok());
  auto forward = take(Forward::create(*model, kCodedRowsMax, 1, &format));
  const auto tokens = random_tokens(kCodedTokens, model->config().vocab, 3);
  const std::span<const std::int32_t> all(tokens);
  const ForwardSpan much{&table, all, true};
  EXPECT_EQ(forward->run({&much, 1}, {}).code(), Code::kExhausted);
  EXPECT_EQ(table.tokens(), 0);
  const ForwardSpan some{&table, all.first(2 * kBlockTokens), true};
  EXPECT_TRUE(forward->run({&some, 1}, {}).ok());
}

}  // namespace
}  // namespace kvlane
