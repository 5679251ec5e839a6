// Passes that end behind K and V of a layer: these have the bits of a whole pass, and nothing is
// done for layers behind it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "model/hidden_restorer.h"
#include "model/sequence_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using namespace sequence_fixture;

const char* const kLayerFormats[] = {"bf16", "int4", "hack", "hack:sink=1,recent=1"};

TEST(KvLayers, FirstLayersHaveTheBitsOfAWholePassInAnyChunking) {
  const auto model = take(Model::load(kBundled / "kvlane-tiny-gqa", {.isa = best_isa()}));
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const int layers = model->config().layers;
  for (const char* name : kLayerFormats) {
    const auto format = make_format(*model, name);
    Sequence whole(*model, format.get());
    const auto rows = whole.compute(tokens, 100);
    for (int n = 1; n <= layers; ++n) {
      for (const int chunk : {7, 64, 100, kRowsMax}) {
        if (chunk == 7 && n != 2) continue;
        const std::string what =
            std::string(name) + " layers " + std::to_string(n) + " chunk " + std::to_string(chunk);
        Sequence part(*model, format.get());
        const auto shown = part.compute(tokens, chunk, n);
        part.expect_same(whole, what, n);
        for (int layer = 0; layer < layers; ++layer) {
          EXPECT_EQ(shown[layer], layer < n ? rows[layer] : std::vector<std::byte>()) << what;
        }
      }
    }
  }
}

TEST(KvLayers, SeveralSequencesInOnePass) {
  const auto model = take(Model::load(kBundled / "kvlane-tiny", {.isa = best_isa()}));
  const std::vector<std::int32_t> tokens[] = {random_tokens(kTokens, model->config().vocab, 5),
                                              random_tokens(kTokens, model->config().vocab, 6),
                                              random_tokens(kTokens, model->config().vocab, 7)};
  for (const char* name : kLayerFormats) {
    const auto format = make_format(*model, name);
    Sequence whole[] = {{*model, format.get()}, {*model, format.get()}, {*model, format.get()}};
    Sequence part[] = {{*model, format.get()}, {*model, format.get()}, {*model, format.get()}};
    const int at_once[] = {1, 33, 120};
    for (int i = 0; i < 3; ++i) {
      whole[i].compute(tokens[i], kTokens);
      ASSERT_TRUE(part[i].table.grow(kTokens).ok());
    }
    std::vector<ForwardSpan> spans;
    do {
      spans.clear();
      for (int i = 0; i < 3; ++i) {
        const int done = part[i].table.tokens();
        const int count = std::min(at_once[i], kTokens - done);
        if (count == 0) continue;
        spans.push_back({&part[i].table, std::span(tokens[i]).subspan(done, count), 0});
      }
      if (!spans.empty()) {
        const Status status = part[0].forward().run(spans, {.kv_layers = 2});
        ASSERT_TRUE(status.ok()) << status.message();
      }
    } while (!spans.empty());
    for (int i = 0; i < 3; ++i) part[i].expect_same(whole[i], name, 2);
  }
}

// The first layers computed, the others from hidden states.
TEST(KvLayers, ASequenceRestoredInPartGoesOnAsIfUninterrupted) {
  const auto model = take(Model::load(kBundled / "kvlane-tiny-gqa", {.isa = best_isa()}));
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const HiddenFormat hidden = take(HiddenFormat::parse("hidden", *model));
  for (const char* name : kLayerFormats) {
    const auto format = make_format(*model, name);
    const auto restorer = take(HiddenRestorer::create(*model, hidden, 128, format.get()));
    for (int n = 1; n < model->config().layers; ++n) {
      const std::string what = std::string(name) + " layers " + std::to_string(n);
      Sequence computed(*model, format.get());
      const auto rows = computed.compute(tokens, kTokens);
      Sequence restored(*model, format.get());
      restored.compute(tokens, 90, n);
      for (int layer = n; layer < model->config().layers; ++layer) {
        const ByteView stored(rows[layer]);
        const Status status =
            restorer->restore({&restored.table, kTokens, 0, kTokens}, layer, {&stored, 1});
        ASSERT_TRUE(status.ok()) << status.message();
      }
      restored.expect_same(computed, what);
      restored.expect_same_answer(computed, what);
    }
  }
}

// No attention, no time for it, and no byte of K and V.
TEST(KvLayers, NothingIsDoneForLaterLayers) {
  const auto model = take(Model::load(kBundled / "kvlane-tiny", {.isa = best_isa()}));
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const int layers = model->config().layers;
  Sequence sequence(*model, nullptr);
  ASSERT_TRUE(sequence.table.grow(kTokens).ok());
  const std::size_t slab = sequence.shape().slab_bytes();
  for (int block = 0; block < sequence.table.blocks(); ++block) {
    for (int layer = 0; layer < layers; ++layer) {
      std::memset(sequence.table.rows(block, layer), 0xA5, slab);
    }
  }
  std::vector<int> inputs, queries, normed, told;
  const PassHooks hooks{.on_layer = [&](int layer, const auto&) { told.push_back(layer); },
                        .on_input = [&](int layer, auto) { inputs.push_back(layer); },
                        .on_queries = [&](int layer, auto, int) { queries.push_back(layer); },
                        .on_normed = [&](int layer, ByteView) { normed.push_back(layer); },
                        .kv_layers = 1};
  const ForwardSpan span{&sequence.table, tokens, 0};
  ASSERT_TRUE(sequence.forward().run({&span, 1}, hooks).ok());
  EXPECT_EQ(sequence.table.tokens(), kTokens);
  const std::vector<int> first{0};
  EXPECT_EQ(told, first);
  EXPECT_EQ(inputs, first);
  EXPECT_EQ(queries, first);
  EXPECT_EQ(normed, first);
  EXPECT_EQ(sequence.forward().times().attention, 0);
  const std::vector<std::byte> untouched(slab, std::byte{0xA5});
  for (int block = 0; block < sequence.table.blocks(); ++block) {
    EXPECT_NE(0, std::memcmp(sequence.table.rows(block, 0), untouched.data(), slab));
    for (int layer = 1; layer < layers; ++layer) {
      EXPECT_EQ(0, std::memcmp(sequence.table.rows(block, layer), untouched.data(), slab));
    }
  }
}

TEST(KvLayers, RefusesLogitsAndLayersThatAreNotThere) {
  const auto model = take(Model::load(kBundled / "kvlane-tiny", {.isa = best_isa()}));
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const int layers = model->config().layers;
  Sequence sequence(*model, nullptr);
  ASSERT_TRUE(sequence.table.grow(kTokens).ok());
  const ForwardSpan some{&sequence.table, std::span(tokens).first(9), 0};
  ForwardSpan logits = some;
  logits.logits = 1;
  const auto layout = take(SparseLayout::create(sequence.shape(), nullptr));
  SparseCache cache(layout, take(make_eviction_rule("h2o:keep=0.5")));
  ForwardSpan scored = some;
  scored.sparse = &cache;
  for (const auto& [span, kv_layers] :
       {std::pair{some, 0}, {some, -1}, {some, layers + 1}, {logits, 1}, {scored, 1}}) {
    const Status status = sequence.forward().run({&span, 1}, {.kv_layers = kv_layers});
    EXPECT_EQ(status.code(), Code::kInternal) << kv_layers;
    EXPECT_EQ(sequence.table.tokens(), 0);
  }
  EXPECT_TRUE(sequence.forward().run({&some, 1}, {.kv_layers = layers}).ok());
  EXPECT_EQ(sequence.table.tokens(), 9);
}

}  // namespace
}  // namespace kvlane
