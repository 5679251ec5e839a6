// Hidden states on their way to the store while sequences are computed: what is saved has every bit
// and gives K and V back; what is not whole is not saved; nobody waits.
// SPDX-License-Identifier: Apache-2.0
#include "restore/hidden_gatherer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/temporary_directory.h"
#include "base/test_paths.h"
#include "cpu/parallel.h"
#include "model/hidden_restorer.h"
#include "model/sequence_fixture.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using sequence_fixture::kTokens;
using sequence_fixture::make_format;
using sequence_fixture::random_tokens;
using sequence_fixture::Sequence;

const fs::path kModel = fs::path(kSourceDir) / "models/kvlane-tiny";
constexpr int kWhole = kTokens / kBlockTokens;  // complete blocks of a sequence

// A sequence, what is saved of it, and all its hidden states to compare with.
struct Saved {
  Saved(const Model& model, const KvFormat* format, int sequence)
      : number(sequence),
        tokens(
            random_tokens(kTokens, model.config().vocab, static_cast<std::uint32_t>(5 + sequence))),
        computed(model, format),
        hidden(static_cast<std::size_t>(model.config().layers)) {
    EXPECT_TRUE(computed.table.grow(kTokens).ok());
  }

  const int number;
  const std::vector<std::int32_t> tokens;
  Sequence computed;
  std::vector<Bytes> hidden;  // of each layer
  std::shared_ptr<SavedRows> rows;
};

class HiddenGathererTest : public ::testing::Test {
 protected:
  HiddenGathererTest()
      : model_(take(Model::load(kModel, {.isa = best_isa()}))),
        layers_(model_->config().layers),
        options_{.format = take(HiddenFormat::parse("hidden", *model_)),
                 .layer_first = 1,
                 .layer_last = layers_} {
    store_options_.directories = {{directory_.path() / "a", 0}, {directory_.path() / "b", 0}};
    store_options_.create = true;
  }

  void open() {
    store_ = take(Store::open(store_options_, take(open_store_files({.devices = 2, .depth = 4}))));
    gatherer_ = take(HiddenGatherer::create(*store_, *model_, options_));
  }

  // One pass with the next `counts[i]` tokens of each sequence; then complete blocks get names.
  void pass(std::span<Saved* const> sequences, std::span<const int> counts) {
    std::vector<ForwardSpan> spans;
    std::vector<PassRows> rows;
    int row = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Saved& each = *sequences[i];
      const int done = each.computed.table.tokens();
      const int count = std::min(counts[i], kTokens - done);
      if (count <= 0) continue;
      spans.push_back({&each.computed.table, std::span(each.tokens).subspan(done, count), 0});
      if (each.rows != nullptr) rows.push_back({each.rows.get(), done, row, count});
      row += count;
    }
    if (spans.empty()) return;
    const auto on_normed = [&](int layer, ByteView normed) {
      gatherer_->copy(layer, rows, normed);
      if (wait_for_layers) gatherer_->flush();
      std::size_t at = 0;
      for (const ForwardSpan& span : spans) {
        const std::size_t bytes = span.tokens.size() * options_.format.row_bytes();
        const ByteView part = normed.subspan(std::exchange(at, at + bytes), bytes);
        for (Saved* each : sequences) {
          if (&each->computed.table != span.table) continue;
          each->hidden[layer].insert(each->hidden[layer].end(), part.begin(), part.end());
        }
      }
    };
    std::vector<int> before;
    for (Saved* each : sequences) before.push_back(each->computed.table.tokens());
    const Status status = sequences[0]->computed.forward().run(spans, {.on_normed = on_normed});
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Saved& each = *sequences[i];
      if (each.rows == nullptr) continue;
      for (int block = before[i] / kBlockTokens;
           block < each.computed.table.tokens() / kBlockTokens; ++block) {
        gatherer_->complete(*each.rows, block, block_name(each.number, block),
                            block_name(each.number, 0));
      }
    }
  }
  void pass(Saved& sequence, int count) {
    Saved* const one = &sequence;
    pass({&one, 1}, {&count, 1});
  }
  void settle() {
    gatherer_->flush();
    store_->flush();
  }

  bool stored(const Saved& sequence, int block) const {
    return store_->holds({.name = block_name(sequence.number, block), .kind = ExtentKind::kHidden},
                         options_.layer_first, options_.layer_last - options_.layer_first);
  }
  int stored_blocks(const Saved& sequence) const {
    int count = 0;
    for (int block = 0; block < kWhole; ++block) count += stored(sequence, block);
    return count;
  }

  // Rows of all layers of a block, [layers][64 rows], as the store has them.
  std::vector<Bytes> read_block(const Saved& sequence, int block) {
    std::vector<Bytes> layers(static_cast<std::size_t>(layers_));
    const BlockKey key{.name = block_name(sequence.number, block), .kind = ExtentKind::kHidden};
    for (const PinnedExtent& extent : store_->find(key)) {
      const ExtentHead& head = extent.head();
      EXPECT_EQ(head.position, block * kBlockTokens);
      EXPECT_EQ(head.format, options_.format.extent_format());
      EXPECT_EQ(head.model, model_->identity());
      EXPECT_EQ(head.type, hidden_type(*model_));
      EXPECT_EQ(head.width, model_->config().hidden);
      for (int p = 0; p < head.layers(); ++p) {
        const Status status = read_parts(*store_, extent, p, 1, layers[head.layer + p]);
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
    return layers;
  }

  // What lies in the store are the rows that the pass showed.
  void expect_stored(const Saved& sequence, int block) {
    ASSERT_TRUE(stored(sequence, block)) << sequence.number << " block " << block;
    const auto layers = read_block(sequence, block);
    const std::size_t bytes = kBlockTokens * options_.format.row_bytes();
    for (int layer = options_.layer_first; layer < options_.layer_last; ++layer) {
      Bytes expected(kBlockTokens * options_.format.stored_bytes());
      ASSERT_TRUE(options_.format
                      .encode(ByteView(sequence.hidden[layer]).subspan(block * bytes, bytes),
                              kBlockTokens, expected.data())
                      .ok());
      EXPECT_TRUE(layers[layer] == expected)
          << sequence.number << " block " << block << " layer " << layer;
    }
  }

  // K and V of a new table, from the store and for layer 0 from the tokens.
  void expect_restored(const Saved& sequence, const KvFormat* format) {
    const auto restorer = take(HiddenRestorer::create(*model_, options_.format, 64, format));
    Sequence restored(*model_, format);
    restored.begin_restore();
    const int tokens = sequence.computed.table.tokens();
    for (int block = 0; block < kWhole; ++block) {
      const RestoreSpan span{&restored.table, tokens, block * kBlockTokens, kBlockTokens};
      const auto layers = read_block(sequence, block);
      ASSERT_TRUE(
          restorer
              ->restore_embedded(
                  span, std::span(sequence.tokens).subspan(block * kBlockTokens, kBlockTokens))
              .ok());
      for (int layer = 1; layer < layers_; ++layer) {
        const ByteView rows(layers[layer]);
        ASSERT_TRUE(restorer->restore(span, layer, {&rows, 1}).ok());
      }
    }
    // The open block has no name: its rows come from here.
    const RestoreSpan open{&restored.table, tokens, kWhole * kBlockTokens,
                           tokens - kWhole * kBlockTokens};
    const std::size_t row = options_.format.row_bytes();
    ASSERT_TRUE(
        restorer->restore_embedded(open, std::span(sequence.tokens).subspan(open.first)).ok());
    for (int layer = 1; layer < layers_; ++layer) {
      const ByteView rows = ByteView(sequence.hidden[layer]).subspan(open.first * row);
      ASSERT_TRUE(restorer->restore(open, layer, {&rows, 1}).ok());
    }
    restored.table.set_tokens(tokens);
    restored.expect_same(sequence.computed, "restored " + std::to_string(sequence.number));
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
  const std::unique_ptr<Model> model_;
  const int layers_;
  HiddenGathererOptions options_;
  StoreOptions store_options_;
  bool wait_for_layers = false;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HiddenGatherer> gatherer_;
};

// Prompts of different lengths a pass, and tokens one by one, in a cache in 16 bits and in codes.
TEST_F(HiddenGathererTest, SequencesOfRaggedPassesComeBackBitForBit) {
  options_.extent_bytes_min = 64 << 10;  // two extents a block
  for (const char* name : {"bf16", "hack"}) {
    const auto format = make_format(*model_, name);
    std::filesystem::remove_all(directory_.path() / "a");
    std::filesystem::remove_all(directory_.path() / "b");
    open();
    Saved first(*model_, format.get(), 0), second(*model_, format.get(), 1),
        third(*model_, format.get(), 2);
    Saved* const all[] = {&first, &second, &third};
    for (Saved* each : all) each->rows = gatherer_->begin();
    pass(all, std::array{100, 1, 40});
    pass(all, std::array{1, 130, 0});
    for (int i = 0; i < 20; ++i) pass(all, std::array{1, 1, 1});
    for (int i = 0; i < 4; ++i) pass(all, std::array{64, 37, 90});
    for (Saved* each : all) ASSERT_EQ(each->computed.table.tokens(), kTokens);
    for (Saved* each : all) gatherer_->end(*each->rows);
    settle();
    for (const Saved* each : all) {
      EXPECT_FALSE(each->rows->lost());
      for (int block = 0; block < kWhole; ++block) expect_stored(*each, block);
      expect_restored(*each, format.get());
    }
    const HiddenGathererFigures figures = gatherer_->figures();
    EXPECT_EQ(figures.rows, 3U * kTokens * (layers_ - 1));
    EXPECT_EQ(figures.bytes, figures.rows * options_.format.row_bytes());
    EXPECT_EQ(figures.blocks, 3U * kWhole);
    EXPECT_EQ(figures.tokens_lost, 0U);
    EXPECT_GE(figures.ring_bytes_used_max, 141 * options_.format.row_bytes());
    EXPECT_LE(figures.ring_bytes_used_max, options_.ring_bytes);
    EXPECT_GT(figures.copy_seconds, 0);
    EXPECT_EQ(store_->find({.name = block_name(1, 2), .kind = ExtentKind::kHidden}).size(), 2U);
    EXPECT_EQ(store_->figures().refused + store_->figures().failed, 0U);
    gatherer_ = nullptr;
    store_ = nullptr;
  }
}

// With a form that saved fewer layers before, what is missing is saved beside what is there.
TEST_F(HiddenGathererTest, LayersThatAreThereAlreadyAreLeftAsTheyAre) {
  for (const int last : {3, layers_}) {
    options_.layer_last = last;
    open();
    Saved sequence(*model_, nullptr, 0);
    sequence.rows = gatherer_->begin();
    for (int i = 0; i < 4; ++i) pass(sequence, 70);
    settle();
    EXPECT_EQ(gatherer_->figures().tokens_lost, 0U);
    EXPECT_EQ(gatherer_->figures().blocks, std::uint64_t{kWhole});
    for (int block = 0; block < kWhole; ++block) expect_stored(sequence, block);
    const BlockKey key{.name = block_name(0, 1), .kind = ExtentKind::kHidden};
    std::vector<LayerRun> runs;
    for (const PinnedExtent& extent : store_->find(key)) {
      runs.push_back({extent.head().layer, extent.head().layers()});
    }
    const std::vector<LayerRun> both = {{1, 2}, {3, layers_ - 3}};
    EXPECT_EQ(runs, last == 3 ? std::vector<LayerRun>({both[0]}) : both);
    gatherer_ = nullptr;
    store_ = nullptr;
  }
}

TEST_F(HiddenGathererTest, EightBitsAndAKey) {
  options_.format = take(HiddenFormat::parse("hidden:int8", *model_));
  store_options_.key.emplace();
  store_options_.key->fill(std::byte{7});
  open();
  Saved sequence(*model_, nullptr, 0);
  sequence.rows = gatherer_->begin();
  for (int i = 0; i < 4; ++i) pass(sequence, 70);
  settle();
  EXPECT_EQ(gatherer_->figures().blocks, std::uint64_t{kWhole});
  for (int block = 0; block < kWhole; ++block) expect_stored(sequence, block);
  for (const PinnedExtent& extent : store_->all()) {
    EXPECT_TRUE(extent.head().encrypted);
    EXPECT_EQ(extent.head().format, "attention_input:int8");
    EXPECT_TRUE(store_->verify(extent).ok());
  }
}

// A ring that ends in the middle of passes, and of their rows.
TEST_F(HiddenGathererTest, RowsGoAroundTheRing) {
  options_.ring_bytes = 101 * options_.format.row_bytes() + 5;
  wait_for_layers = true;
  open();
  Saved sequence(*model_, nullptr, 0);
  sequence.rows = gatherer_->begin();
  for (int i = 0; i < 6; ++i) pass(sequence, i % 2 == 0 ? 101 : 30);
  settle();
  EXPECT_FALSE(sequence.rows->lost());
  EXPECT_EQ(gatherer_->figures().ring_bytes_used_max, 101 * options_.format.row_bytes());
  for (int block = 0; block < kWhole; ++block) expect_stored(sequence, block);
}

TEST_F(HiddenGathererTest, AFullRingLosesTheSequenceFromThereOn) {
  options_.ring_bytes = 70 * options_.format.row_bytes();
  wait_for_layers = true;
  open();
  Saved small(*model_, nullptr, 0), large(*model_, nullptr, 1);
  Saved* const both[] = {&small, &large};
  for (Saved* each : both) each->rows = gatherer_->begin();
  pass(both, std::array{6, 64});  // all of the ring
  pass(both, std::array{6, 65});
  EXPECT_FALSE(small.rows->lost());
  EXPECT_TRUE(large.rows->lost());
  for (int i = 0; i < 4; ++i) pass(both, std::array{60, 64});  // would fit
  settle();
  EXPECT_EQ(stored_blocks(small), 252 / kBlockTokens);
  EXPECT_EQ(stored_blocks(large), 1);
  expect_stored(large, 0);
  for (int block = 0; block < 252 / kBlockTokens; ++block) expect_stored(small, block);
  EXPECT_EQ(gatherer_->figures().tokens_lost, std::uint64_t{3} * kBlockTokens);
  EXPECT_EQ(gatherer_->figures().blocks, 4U);
}

// A store that takes drafts of two blocks at a time.
TEST_F(HiddenGathererTest, RefusedDraftsLoseTheSequenceAndNothingElse) {
  const std::uint64_t part = kBlockTokens * options_.format.row_bytes();
  store_options_.saving_bytes_max = 2 * (kExtentHeaderBytes + part * (layers_ - 1));
  wait_for_layers = true;
  open();
  Saved first(*model_, nullptr, 0), second(*model_, nullptr, 1);
  first.rows = gatherer_->begin();
  second.rows = gatherer_->begin();
  pass(first, 64);
  settle();
  pass(first, 150);  // three blocks are begun at once
  settle();
  EXPECT_TRUE(first.rows->lost());
  EXPECT_GE(store_->figures().refused, 1U);
  EXPECT_EQ(stored_blocks(first), 1);
  EXPECT_EQ(gatherer_->figures().tokens_lost, 2U * kBlockTokens);
  // Its drafts are free again, and others can be saved.
  for (int block = 0; block < kWhole; ++block) {
    pass(second, kBlockTokens);
    settle();
    expect_stored(second, block);
  }
  EXPECT_FALSE(second.rows->lost());
  EXPECT_EQ(gatherer_->figures().blocks, 1U + kWhole);
}

// The same, both at once, with one that waits.
TEST_F(HiddenGathererTest, WhoWaitsLosesNothing) {
  options_.ring_bytes = 70 * options_.format.row_bytes();
  options_.waits = true;
  const std::uint64_t part = kBlockTokens * options_.format.row_bytes();
  store_options_.saving_bytes_max = 2 * (kExtentHeaderBytes + part * (layers_ - 1));
  open();
  Saved sequence(*model_, nullptr, 0);
  sequence.rows = gatherer_->begin();
  while (sequence.computed.table.tokens() < kTokens) pass(sequence, 60);
  settle();
  EXPECT_FALSE(sequence.rows->lost());
  for (int block = 0; block < kWhole; ++block) expect_stored(sequence, block);
  EXPECT_EQ(gatherer_->figures().tokens_lost, 0U);
}

TEST_F(HiddenGathererTest, BlocksWithAMissingRowAreNotSaved) {
  open();
  Saved sequence(*model_, nullptr, 0);
  pass(sequence, 70);  // nobody saves these
  sequence.rows = gatherer_->begin();
  pass(sequence, 140);
  settle();
  EXPECT_FALSE(stored(sequence, 0));
  EXPECT_FALSE(stored(sequence, 1));  // begun at token 70
  expect_stored(sequence, 2);
  EXPECT_FALSE(sequence.rows->lost());
  EXPECT_EQ(gatherer_->figures().tokens_lost, std::uint64_t{kBlockTokens});
  EXPECT_EQ(gatherer_->figures().blocks, 1U);
  // A block that nothing was copied of.
  gatherer_->complete(*sequence.rows, 9, block_name(0, 9), block_name(0, 0));
  settle();
  EXPECT_EQ(gatherer_->figures().tokens_lost, 2U * kBlockTokens);
}

TEST_F(HiddenGathererTest, TheEndDropsWhatIsIncompleteAndGivesItsMemoryBack) {
  const std::uint64_t part = kBlockTokens * options_.format.row_bytes();
  store_options_.saving_bytes_max = kExtentHeaderBytes + part * (layers_ - 1);
  wait_for_layers = true;
  open();
  Saved first(*model_, nullptr, 0), second(*model_, nullptr, 1);
  first.rows = gatherer_->begin();
  second.rows = gatherer_->begin();
  pass(first, 50);
  gatherer_->end(*first.rows);
  first.rows = nullptr;
  pass(second, 64);
  settle();
  expect_stored(second, 0);
  EXPECT_FALSE(stored(first, 0));
  EXPECT_EQ(store_->figures().extents, 1U);
  EXPECT_EQ(store_->figures().refused, 0U);
}

TEST_F(HiddenGathererTest, TheDestructorPutsWhatIsComplete) {
  open();
  Saved first(*model_, nullptr, 0), second(*model_, nullptr, 1);
  Saved* const both[] = {&first, &second};
  for (Saved* each : both) each->rows = gatherer_->begin();
  pass(both, std::array{130, 60});
  gatherer_ = nullptr;
  store_->flush();
  EXPECT_EQ(stored_blocks(first), 2);
  EXPECT_EQ(stored_blocks(second), 0);
  expect_stored(first, 0);
  expect_stored(first, 1);
}

// What no eight bits can hold is not saved; nor is it an error of anybody.
TEST_F(HiddenGathererTest, RowsThatAreNotFiniteHaveNoEightBits) {
  options_.format = take(HiddenFormat::parse("hidden:int8", *model_));
  open();
  const auto rows = gatherer_->begin();
  Bytes normed(kBlockTokens * options_.format.row_bytes());
  for (int layer = 0; layer < layers_; ++layer) {
    if (layer == 3) {
      const std::uint16_t infinity = 0x7F80;
      std::memcpy(normed.data() + 5 * options_.format.row_bytes(), &infinity, sizeof infinity);
    }
    const PassRows all{rows.get(), 0, 0, kBlockTokens};
    gatherer_->copy(layer, {&all, 1}, normed);
  }
  gatherer_->complete(*rows, 0, block_name(0, 0), block_name(0, 0));
  settle();
  EXPECT_TRUE(rows->lost());
  EXPECT_EQ(gatherer_->figures().tokens_lost, std::uint64_t{kBlockTokens});
  EXPECT_EQ(store_->figures().extents, 0U);
}

// A disk that refuses: what complete() was told of is counted.
TEST_F(HiddenGathererTest, BlocksThatTheStoreCannotWriteAreLost) {
  const std::uint64_t part = kBlockTokens * options_.format.row_bytes();
  for (StoreDirectory& each : store_options_.directories) each.bytes_max = part;
  open();
  Saved sequence(*model_, nullptr, 0);
  sequence.rows = gatherer_->begin();
  pass(sequence, 128);
  settle();
  EXPECT_EQ(store_->figures().failed, 2U);
  EXPECT_EQ(gatherer_->figures().blocks, 0U);
  EXPECT_EQ(gatherer_->figures().tokens_lost, 2U * kBlockTokens);
}

TEST_F(HiddenGathererTest, LayersAreCutIntoExtentsThatAreLargeEnough) {
  const std::size_t part = kBlockTokens * options_.format.row_bytes();
  const std::pair<std::size_t, std::vector<int>> cuts[] = {
      {1, {1, 1, 1, 1, 1}}, {part + 1, {2, 3}}, {3 * part, {5}}, {100 * part, {5}}};
  int name = 10;
  for (const auto& [bytes, layers] : cuts) {
    options_.extent_bytes_min = bytes;
    gatherer_ = nullptr;
    open();
    const auto rows = gatherer_->begin();
    const Bytes normed(part);
    for (int layer = 0; layer < layers_; ++layer) {
      const PassRows all{rows.get(), 0, 0, kBlockTokens};
      gatherer_->copy(layer, {&all, 1}, normed);
    }
    ++name;
    gatherer_->complete(*rows, 0, block_name(name, 0), block_name(name, 0));
    settle();
    std::vector<int> found;
    for (const auto& extent :
         store_->find({.name = block_name(name, 0), .kind = ExtentKind::kHidden})) {
      found.push_back(extent.head().layers());
    }
    EXPECT_EQ(found, layers) << bytes;
    gatherer_ = nullptr;
    store_ = nullptr;
  }
}

TEST_F(HiddenGathererTest, RefusesLayersThatAreNotThereAndARingWithoutRoom) {
  open();
  const auto code = [&](int first, int last, std::size_t ring) {
    options_.layer_first = first;
    options_.layer_last = last;
    options_.ring_bytes = ring;
    return HiddenGatherer::create(*store_, *model_, options_).status().code();
  };
  const std::size_t row = options_.format.row_bytes();
  EXPECT_EQ(code(0, layers_, row), Code::kOk);
  EXPECT_EQ(code(0, layers_ + 1, row), Code::kInvalidArgument);
  EXPECT_EQ(code(-1, layers_, row), Code::kInvalidArgument);
  EXPECT_EQ(code(2, 2, row), Code::kInvalidArgument);
  EXPECT_EQ(code(0, layers_, row - 1), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
