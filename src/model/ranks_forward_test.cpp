// Ranks that share a model out give every logit and every row of K and V the bits that one process
// gives it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_paths.h"
#include "cpu/parallel.h"
#include "model/expected_fixture.h"
#include "model/local_ranks.h"
#include "model/sequence_fixture.h"
#include "quant/format_fixture.h"
#include "quant/heads_together.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using sequence_fixture::kTokens;
using sequence_fixture::random_tokens;

constexpr int kRankBlocks = 5;
constexpr int kChunk = 100;
constexpr int kRankAnswer = 3;

// A model and its parts, each loaded once.
class Parts {
 public:
  explicit Parts(std::filesystem::path directory, Isa isa = best_isa())
      : directory_(std::move(directory)), isa_(isa) {}

  const Model& of(const ModelPart& part) {
    for (const auto& model : models_) {
      if (model->part() == part) return *model;
    }
    models_.push_back(take(Model::load(directory_, {.isa = isa_, .part = part})));
    return *models_.back();
  }
  const Model& whole() { return of({}); }

 private:
  const std::filesystem::path directory_;
  const Isa isa_;
  std::vector<std::unique_ptr<Model>> models_;
};

// What a cache is in.
struct Coding {
  std::string format = "bf16";
  const KvTables* tables = nullptr;
};

// Those of every format that needs some.
KvTables tables_of(const Model& model) {
  const KvShape shape = model.config().kv_shape();
  KvTables tables;
  tables_fixture::add_kvquant_tables(shape, tables);
  tables_fixture::add_cachegen_tables(
      shape, {tables_fixture::to_bits(tables_fixture::plain_rows(shape, 1))}, tables);
  if (shape.head_dim < 32) return tables;  // `zack` drops 16 dimensions at a time
  tables_fixture::add_zack_tables(shape, true, tables);
  tables_fixture::add_zack_kvquant_tables("zack:keep=0.5", shape, tables);
  return tables;
}

// Null for "bf16".
std::shared_ptr<const KvFormat> rank_format(const Model& model, const Coding& coding) {
  const Share heads = kv_heads_of(model.whole_config(), model.part());
  const KvFormatContext whole{.shape = model.whole_config().kv_shape(),
                              .rope = &model.rope(),
                              .tables = coding.tables,
                              .isa = model.isa()};
  return take(make_rank_format(coding.format, whole, heads.first, heads.count));
}

SlabSizes slab_sizes(const Model& model, const KvFormat* format) {
  const Share layers = layers_of(model.whole_config(), model.part());
  std::vector<std::size_t> bytes;
  for (int layer = 0; layer < layers.count; ++layer) {
    bytes.push_back(format == nullptr ? 64 : format->slab_bytes(layers.first + layer));
  }
  return SlabSizes(bytes);
}

// What this part's cache has: its layers, and the heads that its format has.
KvShape shape_of(const Model& model, const KvFormat* format) {
  KvShape shape = model.config().kv_shape();
  if (format != nullptr) shape.kv_heads = format->shape().kv_heads;
  return shape;
}

// A part of a model, or all of it, and what it computed.
struct Rank {
  Rank(const Model& its_model, const Coding& coding, RankExchange* ranks, int rows = kChunk)
      : model(&its_model),
        chunk(rows),
        format(rank_format(*model, coding)),
        shape(shape_of(*model, format.get())),
        pool(take(BlockPool::create(shape, kRankBlocks * shape.block_bytes()))),
        sealed(take(BlockPool::create_sealed(
            shape, slab_sizes(*model, format.get()),
            kRankBlocks * slab_sizes(*model, format.get()).block_bytes()))),
        forward(take(Forward::create(*model, chunk, 2, format.get(), ranks))),
        table(format ? BlockTable(sealed, pool, format->window()) : BlockTable(pool)) {
    const int first = layers_of(model->whole_config(), model->part()).first;
    pool.set_first_layer(first);
    sealed.set_first_layer(first);
  }

  // The prompt in chunks, then some tokens one by one.
  void compute() {
    const ParallelScope alone(1);  // others compute beside it
    const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
    EXPECT_TRUE(table.grow(kTokens).ok());
    for (int at = 0; at < kTokens;) {
      const int count =
          at < kTokens - kRankAnswer ? std::min(chunk, kTokens - kRankAnswer - at) : 1;
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

  const Model* const model;
  const int chunk;
  std::shared_ptr<const KvFormat> format;
  const KvShape shape;
  BlockPool pool;
  BlockPool sealed;
  std::unique_ptr<Forward> forward;
  BlockTable table;
  std::vector<float> logits;
};

// The heads that a rank's cache has.
Share heads_of(const Rank& rank) {
  const Share own = kv_heads_of(rank.model->whole_config(), rank.model->part());
  return rank.shape.kv_heads == own.count ? own : Share{0, rank.shape.kv_heads};
}

// Rows that are there: in a coded cache those of the window and of the open block.
void expect_rows_of(const Rank& whole, const Rank& rank) {
  const Share layers = layers_of(whole.model->config(), rank.model->part());
  const Share heads = heads_of(rank);
  const std::size_t d = whole.model->config().head_dim;
  for (int position = 0; position < kTokens; ++position) {
    const int block = position / kBlockTokens;
    ASSERT_EQ(rank.table.rows_id(block) >= 0, whole.table.rows_id(block) >= 0);
    if (rank.table.rows_id(block) < 0) continue;
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

// Of a coded cache: a rank's slab is a part of the whole one, or all of it.
void expect_slabs_of(const Rank& whole, const Rank& rank) {
  const Share layers = layers_of(whole.model->config(), rank.model->part());
  const Share heads = heads_of(rank);
  const bool all = heads.count == whole.shape.kv_heads;
  for (int block = 0; block < kTokens / kBlockTokens; ++block) {
    for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
      const std::size_t at = all ? 0 : whole.format->page_place(layer, heads.first).offset;
      ASSERT_EQ(0,
                std::memcmp(rank.table.sealed(block, layer), whole.table.sealed(block, layer) + at,
                            rank.format->slab_bytes(layer)))
          << "block " << block << " layer " << layer << " heads from " << heads.first;
    }
  }
}

// Ranks get the format by the name that the whole one has, as over a link.
void expect_equal(const Rank& whole, Parts& parts, const Coding& coding, int stages, int count) {
  Coding of_ranks = coding;
  if (whole.format) of_ranks.format = whole.format->name();
  LocalRanks group(stages, count);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int stage = 0; stage < stages; ++stage) {
    for (int rank = 0; rank < count; ++rank) {
      const ModelPart part{stages, stage, count, rank};
      ranks.push_back(
          std::make_unique<Rank>(parts.of(part), of_ranks, group.exchange(part), whole.chunk));
    }
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&rank] { rank->compute(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& rank : ranks) {
    expect_rows_of(whole, *rank);
    if (rank->format) expect_slabs_of(whole, *rank);
    if (!rank->model->part().ends()) continue;
    ASSERT_EQ(rank->logits.size(), whole.logits.size());
    EXPECT_EQ(0, std::memcmp(rank->logits.data(), whole.logits.data(),
                             whole.logits.size() * sizeof(float)))
        << "stages " << stages << " ranks " << count;
  }
}

TEST(RanksForward, PartsHaveTheBitsOfTheWhole) {
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    for (const Isa isa : {Isa::kScalar, best_isa()}) {
      Parts parts(entry.path(), isa);
      Rank whole(parts.whole(), {}, nullptr);
      whole.compute();
      const ModelConfig& config = whole.model->config();
      for (const int stages : {1, config.layers}) {
        for (const int count : std::set{1, 2, 3, config.kv_heads}) {
          if (stages * count == 1 || count > config.kv_heads) continue;
          SCOPED_TRACE(entry.path().filename().string() + ", " + std::string(isa_name(isa)) + ", " +
                       std::to_string(stages) + " x " + std::to_string(count));
          expect_equal(whole, parts, {}, stages, count);
        }
      }
    }
  }
}

// One process takes them through products in pieces, ranks all at once.
TEST(RanksForward, LongPassesHaveThemToo) {
  Parts parts(std::string(kSourceDir) + "/models/kvlane-tiny-gqa");
  const KvTables tables = tables_of(parts.whole());
  for (const char* const format : {"bf16", "hack", "cachegen"}) {
    const Coding coding{format, &tables};
    Rank whole(parts.whole(), coding, nullptr, kTokens);
    whole.compute();
    SCOPED_TRACE(format);
    expect_equal(whole, parts, coding, 2, 2);
  }
}

// Every format, and of its parameters each that changes who reads or writes what.
constexpr const char* kFormats[] = {
    "fp8_e4m3",
    "fp8_e5m2",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "int8",
    "int8:sym=0",
    "int4",
    "kivi",
    "kivi:bits=4,sink=1,recent=1",
    "hack",
    "hack:k=8,v=4,sink=1",
    "hack:compute=bf16",
    "hack:compute=dequantise,recent=1",
    "hack:paper",
    "hack:p=32,mix=1",
    "hack:p=64,round=sr,ktail=code",
    "hack:p=64,compute=complete",
    "hack:p=64,compute=complete,sums=computed",
    "hack:p=64,rqe=0",
    "hack:p=64,diag=int8",
    "hack:p=64,compute=complete,ktail=code,rqe=0,diag=int8",
    "cachegen",
    "cachegen:level=1,sink=1",
    "cachegen:form=paper,recent=1",
    "kvquant",
    "kvquant:bits=2,outliers=0,recent=1",
    "kvquant:bits=3,room=token,sink=1",
    "zack:keep=0.5",
    "zack:keep=0.5,ranks=uniform,sink=1",
    "zack:keep=0.6+hack",
    "zack:keep=0.5+hack:p=32,compute=bf16",
    "zack:keep=0.5+int4",
    "zack:keep=0.7+fp8_e4m3",
    "zack:keep=0.7,recent=1+kivi:bits=2",
    "zack:bits=3.5+hack",
    "zack:keep=0.5+kvquant",
    "zack:keep=0.5,sink=1+kvquant:bits=2,outliers=0",
};

TEST(RanksForward, CodedCachesHaveTheBitsOfTheWhole) {
  Parts parts(std::string(kSourceDir) + "/models/kvlane-tiny-gqa");
  const KvTables tables = tables_of(parts.whole());
  for (const char* const format : kFormats) {
    const Coding coding{format, &tables};
    Rank whole(parts.whole(), coding, nullptr);
    whole.compute();
    const bool together = codes_heads_together(*whole.format);
    for (const auto& [stages, count] : {std::pair(2, 2), std::pair(1, 2), std::pair(3, 1)}) {
      if (stages * count < 4 && !together) continue;  // nothing that two stages of two do not do
      SCOPED_TRACE(std::string(format) + " " + std::to_string(stages) + " x " +
                   std::to_string(count));
      expect_equal(whole, parts, coding, stages, count);
    }
  }
}

TEST(RanksForward, NoFormatIsForgotten) {
  std::string names(kv_format_names());
  std::ranges::replace(names, ',', ' ');
  std::istringstream words(names);
  for (std::string name; words >> name;) {
    const bool there = std::ranges::any_of(kFormats, [&](const char* format) {
      return std::string_view(format).substr(0, std::string_view(format).find(':')) == name;
    });
    EXPECT_TRUE(there || name == "bf16") << name;
  }
}

// Ranks that have one head of three, or two of four, with rows of all of them: products in F32,
// families without rotation, with norms of K, with a feed-forward network beside attention.
TEST(RanksForward, HeadsThatAreCodedTogetherGoAlongInEveryFamily) {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    Parts parts(entry.path());
    const int heads = parts.whole().config().kv_heads;
    if (heads == 1) continue;
    ++models;
    const KvTables tables = tables_of(parts.whole());
    for (const char* const format : {"cachegen", "kvquant:bits=3"}) {
      const Coding coding{format, &tables};
      Rank whole(parts.whole(), coding, nullptr);
      whole.compute();
      for (const int count : {2, heads}) {
        SCOPED_TRACE(entry.path().filename().string() + ", " + format + ", " +
                     std::to_string(count));
        expect_equal(whole, parts, coding, 1, count);
      }
    }
  }
  EXPECT_GT(models, 6);
}

TEST(RanksForward, AFormatOfOtherHeadsIsRefused) {
  const std::filesystem::path directory = kModels / "falcon-mha-f32-sequential";
  const auto model = take(Model::load(directory, {.part = {.ranks = 2}}));
  KvShape shape = model->config().kv_shape();
  shape.kv_heads = 3;
  const format_fixture::Identity format(shape);
  LocalRanks group(1, 2);
  const auto made = Forward::create(*model, 1, 1, &format, group.exchange(model->part()));
  EXPECT_EQ(made.status().code(), Code::kInternal);
  EXPECT_EQ(made.status().message(), "a format of 3 KV heads is not for a part with 2 of 4");
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
