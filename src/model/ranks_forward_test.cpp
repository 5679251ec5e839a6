// Ranks that share a model out give every logit and every row of K and V the bits that one process
// gives it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/local_ranks.h"
#include "model/sequence_fixture.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using sequence_fixture::kTokens;
using sequence_fixture::random_tokens;
using sequence_fixture::take;

constexpr int kBlocks = 5;
constexpr int kChunk = 100;
constexpr int kAnswer = 3;

// A format of this part's KV heads in all layers; null for "bf16".
std::shared_ptr<const KvFormat> make_format(const Model& model, const std::string& name) {
  const Share heads = kv_heads_of(model.whole_config(), model.part());
  KvTables tables;
  KvFormatContext context{.shape = model.whole_config().kv_shape(),
                          .rope = &model.rope(),
                          .tables = &tables,
                          .isa = model.isa(),
                          .heads = {heads.first, model.whole_config().kv_heads}};
  if (name.starts_with("zack")) tables_fixture::add_zack_tables(context.shape, true, tables);
  context.shape.kv_heads = heads.count;
  return take(make_kv_format(name, context));
}

SlabSizes slab_sizes(const Model& model, const KvFormat* format) {
  const Share layers = layers_of(model.whole_config(), model.part());
  std::vector<std::size_t> bytes;
  for (int layer = 0; layer < layers.count; ++layer) {
    bytes.push_back(format == nullptr ? 64 : format->slab_bytes(layers.first + layer));
  }
  return SlabSizes(bytes);
}

// A part of a model, or all of it, and what it computed.
struct Rank {
  Rank(const std::filesystem::path& directory, Isa isa, const ModelPart& part, RankExchange* ranks,
       const std::string& format_name = "bf16")
      : model(take(Model::load(directory, {.isa = isa, .part = part}))),
        format(make_format(*model, format_name)),
        pool(take(BlockPool::create(model->config().kv_shape(),
                                    kBlocks * model->config().kv_shape().block_bytes()))),
        sealed(take(
            BlockPool::create_sealed(model->config().kv_shape(), slab_sizes(*model, format.get()),
                                     kBlocks * slab_sizes(*model, format.get()).block_bytes()))),
        forward(take(Forward::create(*model, kChunk, 2, format.get(), ranks))),
        table(format ? BlockTable(sealed, pool, format->window()) : BlockTable(pool)) {
    const int first = layers_of(model->whole_config(), part).first;
    pool.set_first_layer(first);
    sealed.set_first_layer(first);
  }

  // The prompt in chunks, then some tokens one by one.
  void compute() {
    const auto tokens = random_tokens(model->config().vocab);
    EXPECT_TRUE(table.grow(kTokens).ok());
    for (int at = 0; at < kTokens;) {
      const int count = at < kTokens - kAnswer ? std::min(kChunk, kTokens - kAnswer - at) : 1;
      const ForwardSpan span{&table, std::span(tokens).subspan(at, count), std::min(count, 2)};
      const Status status = forward->run({&span, 1}, {});
      ASSERT_TRUE(status.ok()) << status.message();
      if (model->part().ends()) {
        for (int row = 0; row < span.logits; ++row) {
          const auto values = forward->logits(row);
          logits.insert(logits.end(), values.begin(), values.end());
        }
      }
      at += count;
    }
  }

  std::unique_ptr<Model> model;
  std::shared_ptr<const KvFormat> format;
  BlockPool pool;
  BlockPool sealed;
  std::unique_ptr<Forward> forward;
  BlockTable table;
  std::vector<float> logits;
};

void expect_pages_of(const Rank& whole, const Rank& rank) {
  const Share layers = layers_of(whole.model->config(), rank.model->part());
  const Share heads = kv_heads_of(whole.model->config(), rank.model->part());
  const std::size_t d = whole.model->config().head_dim;
  for (int position = 0; position < kTokens; ++position) {
    const int block = position / kBlockTokens;
    const std::size_t row = position % kBlockTokens * d;
    for (int layer = 0; layer < layers.count; ++layer) {
      for (int head = 0; head < heads.count; ++head) {
        const std::uint16_t* own = rank.table.page(block, layers.first + layer, head) + row;
        const std::uint16_t* all =
            whole.table.page(block, layers.first + layer, heads.first + head) + row;
        const std::size_t values = kBlockTokens * d;
        ASSERT_EQ(0, std::memcmp(own, all, d * 2)) << "K at " << position << " layer " << layer;
        ASSERT_EQ(0, std::memcmp(own + values, all + values, d * 2)) << "V at " << position;
      }
    }
  }
}

void expect_equal(const Rank& whole, const std::filesystem::path& directory, int stages, int count,
                  const std::string& format = "bf16") {
  LocalRanks group(stages, count);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int stage = 0; stage < stages; ++stage) {
    for (int rank = 0; rank < count; ++rank) {
      const ModelPart part{stages, stage, count, rank};
      ranks.push_back(std::make_unique<Rank>(directory, whole.model->isa(), part,
                                             group.exchange(part), format));
    }
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&rank] { rank->compute(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& rank : ranks) {
    if (!rank->format) expect_pages_of(whole, *rank);
    if (!rank->model->part().ends()) continue;
    ASSERT_EQ(rank->logits.size(), whole.logits.size());
    EXPECT_EQ(0, std::memcmp(rank->logits.data(), whole.logits.data(),
                             whole.logits.size() * sizeof(float)))
        << directory.filename() << " stages " << stages << " ranks " << count;
  }
}

TEST(RanksForward, PartsHaveTheBitsOfTheWhole) {
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    for (const Isa isa : {Isa::kScalar, best_isa()}) {
      Rank whole(entry.path(), isa, {}, nullptr);
      whole.compute();
      const ModelConfig& config = whole.model->config();
      for (const int stages : {1, config.layers}) {
        for (const int count : {1, 2, 3, config.kv_heads}) {
          if (stages * count == 1 || count > config.kv_heads) continue;
          SCOPED_TRACE(entry.path().filename().string() + ", " + std::string(isa_name(isa)) + ", " +
                       std::to_string(stages) + " x " + std::to_string(count));
          expect_equal(whole, entry.path(), stages, count);
        }
      }
    }
  }
}

TEST(RanksForward, CodedCachesHaveTheBitsOfTheWhole) {
  const std::filesystem::path model = KVLANE_SOURCE_DIR "/models/kvlane-tiny-gqa";
  for (const char* const format :
       {"fp8_e4m3", "mxfp4", "int8", "kivi", "kivi:bits=4,sink=1,recent=1", "hack", "hack:paper",
        "hack:p=64,round=sr,ktail=code", "zack:keep=0.5", "zack:keep=0.5,ranks=uniform",
        "zack:keep=0.6+hack", "zack:keep=0.5+int4"}) {
    Rank whole(model, best_isa(), {}, nullptr, format);
    whole.compute();
    for (const auto& [stages, count] : {std::pair(3, 1), std::pair(1, 2), std::pair(2, 2)}) {
      SCOPED_TRACE(format);
      expect_equal(whole, model, stages, count, format);
    }
  }
}

TEST(RanksForward, FormatsThatNeedAllHeadsAreRefused) {
  const auto model = take(Model::load(kModels / "opt-mha-bf16", {.part = {.ranks = 2}}));
  for (const char* const name : {"kvquant", "cachegen"}) {
    KvTables tables;
    KvFormatContext context{.shape = model->config().kv_shape(),
                            .rope = &model->rope(),
                            .tables = &tables,
                            .heads = {0, model->whole_config().kv_heads}};
    const auto made = make_kv_format(name, context);
    EXPECT_EQ(made.status().code(), Code::kUnsupported) << made.status().message();
    EXPECT_NE(made.status().message().find("so ranks cannot share them out"), std::string::npos);
  }
}

TEST(RanksForward, ThePartsOfAModelAreAllOfIt) {
  for (const int n : {1, 2, 7, 32, 151936}) {
    for (const int parts : {1, 2, 3, 8}) {
      int next = 0;
      for (int part = 0; part < parts; ++part) {
        const Share share = share_of(n, parts, part);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(share.count, n / parts + 1);
        EXPECT_GE(share.count, n / parts);
        next += share.count;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(RanksForward, RefusesPartsWithoutLayersOrHeads) {
  const auto load = [](const ModelPart& part) {
    return Model::load(kModels / "llama-mqa-f32", {.part = part}).status().message();
  };
  EXPECT_EQ(load({.ranks = 2}),
            "2 tensor-parallel ranks are more than the 1 KV heads of the model");
  EXPECT_EQ(load({.stages = 99}), "99 pipeline stages are more than the 2 layers of the model");
}

}  // namespace
}  // namespace kvlane
