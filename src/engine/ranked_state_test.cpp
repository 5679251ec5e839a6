// Engines of models that ranks compute, whose ranks have state stores: sequences go on where they
// were, each rank having saved and read its own part.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_sanitizers.h"
#include "engine/engine_fixture.h"
#include "engine/ranked_fixture.h"
#include "engine/state_fixture.h"
#include "model/expected_fixture.h"
#include "model/synth.h"
#include "quant/heads_together.h"
#include "quant/kv_tables.h"
#include "quant/tables_fixture.h"
#include "ranks/ranks_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ranked_fixture::format_of;
using ranked_fixture::Layout;
using ranks_fixture::RankThreads;

constexpr const char* kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "head_dim": 32, "num_hidden_layers": 5, "vocab_size": 200, "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16", "tie_word_embeddings": false, "num_attention_heads": 8,
    "num_key_value_heads": 4})";
constexpr int kRankedLayers = 5;

// Random weights, five layers, four KV heads.
const fs::path& model_directory() {
  static const TemporaryDirectory directory;
  static const fs::path model = [] {
    const fs::path path = directory.path() / "model";
    const Status written = write_synthetic_checkpoint({.config_json = kConfig}, path);
    EXPECT_TRUE(written.ok()) << written.message();
    return path;
  }();
  return model;
}

std::unique_ptr<Model> load_ranked(bool weights, const fs::path& model = model_directory()) {
  return take(Model::load(model, {.isa = best_isa(), .weights = weights}));
}

std::string name_of(const Layout& layout) {
  return std::to_string(layout.stages) + " x " + std::to_string(layout.ranks);
}

fs::path store_of(const fs::path& directory, int rank) {
  return directory / ("rank" + std::to_string(rank));
}

// Of the formats that need some, for the model above.
const KvTables& tables() {
  static const KvTables made = [] {
    KvTables tables;
    const KvShape shape = load_ranked(false)->config().kv_shape();
    tables_fixture::add_kvquant_tables(shape, tables);
    const auto rows = tables_fixture::to_bits(tables_fixture::plain_rows(shape, 1));
    tables_fixture::add_cachegen_tables(shape, {rows}, tables);
    return tables;
  }();
  return made;
}

// What is computed, and how it is saved.
struct RankedSaving {
  std::string format = "bf16";
  std::string codec = "none";
  std::string form = "kv";
  fs::path model = model_directory();
  int sequences_max = 16;
  std::uint64_t memory_bytes = 0;  // of each rank's store
};

// Of the ranks of one engine, each opened by its own thread.
struct Stores {
  std::mutex mutex;
  std::vector<std::shared_ptr<Store>> all;
};

StateForms forms_of(const RankedSaving& saving) {
  return take(
      make_state_forms(saving.form, load_ranked(false, saving.model)->config().layers, nullptr, 0));
}

// Few, so that a prompt that is computed as a whole takes many steps.
constexpr int kRankedChunk = 50;

// An engine, and the ranks that compute for it.
struct SavingWorker {
  SavingWorker(const Layout& layout, const RankedSaving& saving, const fs::path& directory)
      : whole(load_ranked(false, saving.model)),
        threads(start(layout, saving, directory, *stores)) {
    EXPECT_TRUE(threads->group->wait_for_ranks(*whole).ok());
    EngineOptions options;
    options.kv_bytes = std::size_t{1} << 24;
    options.chunk_tokens = kRankedChunk;
    options.sequences_max = saving.sequences_max;
    options.kv_format = format_of(*whole, saving.format, &tables());
    options.ranks = threads->group.get();
    options.state.on_ranks = true;
    options.state.forms = forms_of(saving);
    options.state.codec = saving.codec;
    engine = take(Engine::create(*whole, fixture_tokenizer(), nullptr, options));
  }
  static std::unique_ptr<RankThreads> start(const Layout& layout, const RankedSaving& saving,
                                            const fs::path& directory, Stores& stores) {
    return std::make_unique<RankThreads>(
        saving.model, layout.stages, layout.ranks,
        [directory, memory = saving.memory_bytes, &stores](const Model& part,
                                                           RankProcessOptions& options) {
          options.make_format = [&part](const std::string& wanted) {
            return Result(format_of(part, wanted, &tables()));
          };
          const ModelPart own = part.part();
          const fs::path at = store_of(directory, own.stage * own.ranks + own.rank);
          options.open_store = [at, memory, &stores](int) {
            const std::shared_ptr<Store> store = open_store(at, {}, memory);
            const std::lock_guard lock(stores.mutex);
            stores.all.push_back(store);
            return Result(store);
          };
        });
  }
  // What waits is saved first.
  ~SavingWorker() {
    engine.reset();
    threads->end();
    for (const Status& end : threads->ends) EXPECT_TRUE(end.ok()) << end.message();
  }

  const std::unique_ptr<Stores> stores = std::make_unique<Stores>();
  std::unique_ptr<Model> whole;
  std::unique_ptr<RankThreads> threads;
  std::unique_ptr<Engine> engine;
};

// What one process that never forgets anything answers, of two turns.
struct Expected {
  explicit Expected(const std::string& format, int prompt_tokens = 300,
                    const fs::path& directory = model_directory())
      : first(make_request(prompt_tokens, 40, 1)) {
    EngineOptions options;
    options.kv_bytes = std::size_t{1} << 24;
    const auto model = load_ranked(true, directory);
    options.kv_format = format_of(*model, format, &tables());
    const auto engine = take(Engine::create(*model, fixture_tokenizer(), nullptr, options));
    first_answer = answer_of(*engine, first);
    second = next_turn(first, first_answer, make_request(30, 12, 2));
    second_answer = answer_of(*engine, second);
  }

  // All complete blocks of the first turn, its answer included.
  int tokens_back() const {
    return (static_cast<int>(first.prompt.size()) + 39) / kBlockTokens * kBlockTokens;
  }

  const GenerationRequest first;
  GenerationRequest second;
  std::vector<std::int32_t> first_answer, second_answer;
};

void save_first_turn(const Layout& layout, const RankedSaving& saving, const Expected& expected,
                     const fs::path& directory) {
  SavingWorker worker(layout, saving, directory);
  Answer other;
  ASSERT_TRUE(worker.engine->submit(make_request(200, 30, 9), other.on_update()).ok());
  EXPECT_EQ(answer_of(*worker.engine, expected.first), expected.first_answer);
  other.wait();
  worker.engine->wait_idle();
  EXPECT_EQ(worker.engine->load().hidden_tokens_lost, 0);
  EXPECT_EQ(worker.engine->load().save_failures, 0);
}

void expect_ranks_go_on(const Layout& layout, const RankedSaving& saving,
                        const Expected& expected) {
  SCOPED_TRACE(name_of(layout) + " " + saving.format + " " + saving.codec + " " + saving.form);
  const TemporaryDirectory directory;
  save_first_turn(layout, saving, expected, directory.path());
  RankedSaving read = saving;
  read.codec = "none";  // what is there says how it is coded
  SavingWorker worker(layout, read, directory.path());
  std::vector<std::int32_t> all = expected.first.prompt;
  all.insert(all.end(), expected.first_answer.begin(), expected.first_answer.end());
  EXPECT_EQ(take(worker.engine->stored_tokens(all, "")), expected.tokens_back());
  Finish finish;
  EXPECT_EQ(answer_of(*worker.engine, expected.second, &finish), expected.second_answer);
  EXPECT_EQ(finish.cached_tokens, expected.tokens_back());
  EXPECT_GT(finish.account.restore, 0);
  worker.engine->wait_idle();
  const EngineLoad load = worker.engine->load();
  EXPECT_GE(load.restores, 1);  // by parts where there is a window
  EXPECT_EQ(load.restores_failed, 0);
  EXPECT_GT(load.restore_bytes, 0);
  // What came back is not computed again.
  const int computed = static_cast<int>(expected.second.prompt.size()) - expected.tokens_back();
  const auto answer = std::ssize(expected.second_answer);
  EXPECT_EQ(load.steps, (computed + kRankedChunk - 1) / kRankedChunk + answer - 1);
}

const std::vector<Layout> kLayouts = {{1, 4}, {2, 1}, {2, 2}};

TEST(RankedState, AConversationGoesOnFromSlabs) {
  const Expected rows("bf16");
  for (const Layout& layout : every_other_if(kSanitized, kLayouts)) {
    expect_ranks_go_on(layout, {}, rows);
  }
  expect_ranks_go_on({2, 2}, {.codec = "splitzip"}, rows);
  expect_ranks_go_on({2, 2}, {.format = "int4"}, Expected("int4"));
  expect_ranks_go_on({1, 2}, {.format = "hack"}, Expected("hack"));
  for (const char* const format : {"fp8_e4m3", "mxfp4", "kivi:bits=2"}) {
    expect_ranks_go_on({2, 2}, {.format = format}, Expected(format));
  }
  // Each rank has whole slabs.
  for (const char* const format : {"kvquant:bits=4", "cachegen:level=2"}) {
    expect_ranks_go_on({1, 2}, {.format = format}, Expected(format));
  }
}

// Which each rank has of some layers, and all project.
TEST(RankedState, AConversationGoesOnFromHiddenStates) {
  const Expected rows("bf16"), codes("int4");
  for (const Layout& layout : every_other_if(kSanitized, kLayouts)) {
    expect_ranks_go_on(layout, {.form = "hidden"}, rows);
  }
  expect_ranks_go_on({1, 2}, {.form = "hidden=3"}, rows);
  // In several pieces.
  expect_ranks_go_on({1, 2}, {.form = "hidden"}, Expected("bf16", 700));
  expect_ranks_go_on({2, 2}, {.format = "int4", .form = "hidden"}, codes);
}

// Biases, norms of heads, matrices in one, groups of Q, K and V, learned positions, a window;
// hidden states in F32 where weights are not in BF16.
TEST(RankedState, AConversationOfEveryFamilyGoesOn) {
  for (const char* const name :
       {"llama-gqa-f16", "qwen2-grouped-bf16", "qwen3-gqa-bf16", "phi3-gqa-bf16-longrope",
        "falcon-gqa-bf16", "falcon-mha-f32-sequential", "opt-mha-bf16",
        "mistral-grouped-bf16-window"}) {
    const fs::path model = expected_fixture::kModels / name;
    const ModelConfig config = load_ranked(false, model)->config();
    const Layout layout{std::min(2, config.layers), std::min(2, config.kv_heads)};
    const Expected expected("bf16", 300, model);
    SCOPED_TRACE(name);
    expect_ranks_go_on(layout, {.codec = "splitzip", .model = model}, expected);
    expect_ranks_go_on(layout, {.form = "hidden", .model = model}, expected);
  }
}

// By all ranks: each has a part of the hidden states of a layer's stage.
TEST(RankedState, WhoWaitsForAPlaceIsReadAhead) {
  const Expected expected("bf16");
  for (const char* form : {"kv", "hidden"}) {
    SCOPED_TRACE(form);
    const TemporaryDirectory directory;
    RankedSaving saving{.form = form};
    save_first_turn({2, 2}, saving, expected, directory.path());
    saving.sequences_max = 1;
    saving.memory_bytes = std::uint64_t{1} << 26;
    SavingWorker worker({2, 2}, saving, directory.path());
    Answer long_one, waiting;
    ASSERT_TRUE(worker.engine->submit(make_request(20, 300, 5), long_one.on_update()).ok());
    long_one.wait_for_tokens(1);
    ASSERT_TRUE(worker.engine->submit(expected.second, waiting.on_update()).ok());
    long_one.wait();
    waiting.wait();
    EXPECT_EQ(waiting.tokens(), expected.second_answer);
    EXPECT_EQ(waiting.finish().cached_tokens, expected.tokens_back());
    EXPECT_EQ(worker.stores->all.size(), 4U);
    for (const auto& store : worker.stores->all) {
      const StoreFigures figures = store->figures();
      // There are no hidden states of the first layer, so one rank may have none.
      EXPECT_EQ(figures.prefetched > 0, !store->all().empty());
      EXPECT_EQ(figures.memory_reads, figures.prefetched);
    }
  }
}

// The extents of a rank's store: of which layers there are slabs and hidden states, and their
// bytes.
struct Contents {
  std::set<int> slabs, hidden;
  std::size_t bytes = 0;
};

Contents contents_of(const fs::path& directory, int shards, int shard) {
  Contents contents;
  for (const PinnedExtent& extent : open_store(directory)->all()) {
    const ExtentHead& head = extent.head();
    const bool hidden = head.key.kind == ExtentKind::kHidden;
    if (!hidden) {
      EXPECT_EQ(head.key.shards, shards);
      EXPECT_EQ(head.key.shard, shard);
    }
    for (int part = 0; part < head.layers(); ++part) {
      (hidden ? contents.hidden : contents.slabs).insert(head.layer + part);
      contents.bytes += head.parts[part].bytes();
    }
  }
  return contents;
}

// No rank has what another one has, and together they have as much as one process.
TEST(RankedState, RanksHaveDisjointParts) {
  const Expected expected("bf16");
  const int layers = kRankedLayers;
  for (const char* form : {"kv", "hidden"}) {
    std::size_t bytes_of_one = 0;
    for (const Layout& layout : {Layout{1, 1}, Layout{1, 2}, Layout{2, 1}, Layout{2, 2}}) {
      SCOPED_TRACE(std::string(form) + " " + name_of(layout));
      const TemporaryDirectory directory;
      save_first_turn(layout, {.form = form}, expected, directory.path());
      std::size_t bytes = 0;
      std::multiset<int> slabs, hidden;
      for (int rank = 0; rank < layout.stages * layout.ranks; ++rank) {
        const Contents own =
            contents_of(store_of(directory.path(), rank), layout.ranks, rank % layout.ranks);
        bytes += own.bytes;
        slabs.insert(own.slabs.begin(), own.slabs.end());
        hidden.insert(own.hidden.begin(), own.hidden.end());
      }
      if (bytes_of_one == 0) bytes_of_one = bytes;
      EXPECT_EQ(bytes, bytes_of_one);
      const bool kv = std::string(form) == "kv";
      for (int layer = 0; layer < layers; ++layer) {
        EXPECT_EQ(slabs.count(layer), kv ? std::size_t(layout.ranks) : 0);
        EXPECT_EQ(hidden.count(layer), kv || layer == 0 ? 0U : 1U);
      }
    }
  }
}

// What one rank has lost nobody brings back, and the answer is right.
TEST(RankedState, WhatOneRankLacksIsComputed) {
  const Expected expected("bf16");
  for (const char* form : {"kv", "hidden"}) {
    for (const int lost : {1, 2}) {
      SCOPED_TRACE(std::string(form) + " " + std::to_string(lost));
      const TemporaryDirectory directory;
      const RankedSaving saving{.form = form};
      save_first_turn({2, 2}, saving, expected, directory.path());
      fs::remove_all(store_of(directory.path(), lost));
      SavingWorker worker({2, 2}, saving, directory.path());
      Finish finish;
      EXPECT_EQ(answer_of(*worker.engine, expected.second, &finish), expected.second_answer);
      EXPECT_EQ(finish.cached_tokens, 0);
    }
  }
}

// Where slabs have all heads, a rank cannot make those of the first layer from tokens.
TEST(RankedState, SlabsOfAllHeadsDoNotComeFromTokens) {
  const RankedSaving saving{.format = "kvquant:bits=4"};
  const Expected expected(saving.format);
  const TemporaryDirectory directory;
  const Layout layout{4, 2};
  save_first_turn(layout, saving, expected, directory.path());
  for (const int first_stage : {0, 1}) fs::remove_all(store_of(directory.path(), first_stage));
  SavingWorker worker(layout, saving, directory.path());
  Finish finish;
  EXPECT_EQ(answer_of(*worker.engine, expected.second, &finish), expected.second_answer);
  EXPECT_EQ(finish.cached_tokens, 0);
}

// Bytes that one rank reads are wrong: that block and those behind it are computed.
TEST(RankedState, WhatIsDamagedAtOneRankIsComputed) {
  const Expected expected("bf16");
  for (const char* form : {"kv", "hidden"}) {
    SCOPED_TRACE(form);
    const TemporaryDirectory directory;
    const RankedSaving saving{.form = form};
    save_first_turn({1, 2}, saving, expected, directory.path());
    int damaged = 0;
    for (const auto& file : fs::recursive_directory_iterator(store_of(directory.path(), 1))) {
      if (file.path().extension() != ".seg" || file.file_size() < 16384) continue;
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      // Of every page something; headers of extents may be among them.
      for (std::size_t at = 1000; at < file.file_size(); at += 4096) {
        stream.seekp(static_cast<std::streamoff>(at));
        stream.write("damaged!damaged!", 16);
        ++damaged;
      }
    }
    ASSERT_GT(damaged, 0);
    SavingWorker worker({1, 2}, saving, directory.path());
    Finish finish;
    EXPECT_EQ(answer_of(*worker.engine, expected.second, &finish), expected.second_answer);
    EXPECT_LT(finish.cached_tokens, expected.tokens_back());
    worker.engine->wait_idle();
    EXPECT_EQ(worker.engine->load().restores_failed, 1);
  }
}

// Who has K of its own heads alone cannot make slabs of all.
TEST(RankedState, HiddenStatesGiveNoSlabsOfAllHeads) {
  const auto whole = load_ranked(false);
  RankThreads threads(model_directory(), 1, 2);
  EngineOptions options;
  options.kv_format = format_of(*whole, "kvquant:bits=4", &tables());
  options.ranks = threads.group.get();
  options.state.on_ranks = true;
  // With hidden=1 the first layer alone is in no form.
  for (const char* const form : {"hidden", "hidden=1", "hidden=2"}) {
    options.state.forms = forms_of({.form = form});
    const auto engine = Engine::create(*whole, fixture_tokenizer(), nullptr, options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), Code::kUnsupported);
    EXPECT_NE(engine.status().message().find("store slabs"), std::string::npos);
  }
}

// A rank without a store cannot be one of a head with one.
TEST(RankedState, ARankWithoutAStoreIsTurnedAway) {
  const auto whole = load_ranked(false);
  RankThreads threads(model_directory(), 1, 2);
  ASSERT_TRUE(threads.group->wait_for_ranks(*whole).ok());
  EngineOptions options;
  options.kv_bytes = std::size_t{1} << 24;
  options.ranks = threads.group.get();
  options.state.on_ranks = true;
  const auto engine = Engine::create(*whole, fixture_tokenizer(), nullptr, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("has gone"), std::string::npos)
      << engine.status().message();
  threads.end();
  int told = 0;
  for (const Status& end : threads.ends) {
    told += end.message().find("this rank has no --store") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(told, 0);
}

}  // namespace
}  // namespace kvlane
