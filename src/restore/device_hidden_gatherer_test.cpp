// Hidden states of passes on a device, one of emulated threads, on their way to the store: every
// bit of what the passes kept, though copies come late and passes are launched as a whole; what is
// not whole is not saved, and nobody else loses anything.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/random.h"
#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "model/device_forward.h"
#include "model/emulated_accelerator.h"
#include "restore/hidden_gatherer.h"
#include "restore/tiny_model_fixture.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

using Counted = EmulatedAccelerator::Counted;

constexpr int kSavedTokens = 160;  // two blocks and an open one
constexpr int kRowsMax = 200;
constexpr int kSequences = 3;

EmulatedAccelerator& gatherer_device() {
  static EmulatedAccelerator device;
  return device;
}
const Model& model() {
  static const std::unique_ptr<Model> model =
      tiny_model_fixture::load({.device = &gatherer_device()});
  return *model;
}

class DeviceHiddenGathererTest : public testing::Test {
 protected:
  DeviceHiddenGathererTest() {
    // cppcheck-suppress useInitializationList ; it would be harder to read there
    options_ = {.format = take(HiddenFormat::parse("hidden", model())),
                .layer_first = 1,
                .layer_last = model().config().layers};
  }
  ~DeviceHiddenGathererTest() override { gatherer_device().fail_call(0); }

  struct Saved {
    explicit Saved(BlockPool& pool, int sequence) : number(sequence), table(pool) {
      EXPECT_TRUE(table.grow(kSavedTokens).ok());
      for (int i = 0; i < kSavedTokens; ++i) {
        const auto dice = philox4x32(40 + sequence, {static_cast<std::uint32_t>(i), 0, 0, 0});
        tokens.push_back(static_cast<std::int32_t>(dice[0] % model().config().vocab));
      }
    }
    const int number;
    BlockTable table;
    std::vector<std::int32_t> tokens;
    std::map<int, Bytes> hidden;  // of each layer, as passes kept them
    std::shared_ptr<SavedRows> rows;
  };

  void open() {
    StoreOptions store{.create = true};
    store.directories.push_back({directory_.path() / std::to_string(stores_++), 0});
    gatherer_ = nullptr;
    store_ = take(Store::open(store, take(open_store_files({}))));
    gatherer_ = take(HiddenGatherer::create(*store_, model(), options_));
    forward_ =
        take(DeviceForward::create(model().on_device(), gatherer_device(), kRowsMax, kSequences,
                                   true, {}, {options_.layer_first, options_.layer_last}));
    sequences_.clear();
    for (int i = 0; i < kSequences; ++i) {
      sequences_.push_back(std::make_unique<Saved>(pool_, i));
      sequences_.back()->rows = gatherer_->begin();
    }
  }

  // One pass with so many more tokens of each sequence; then complete blocks get names.
  void pass(std::array<int, kSequences> counts) {
    std::vector<ForwardSpan> spans;
    std::vector<Saved*> saved;
    for (int i = 0; i < kSequences; ++i) {
      Saved& each = *sequences_[i];
      const int done = each.table.tokens(), count = std::min(counts[i], kSavedTokens - done);
      if (count <= 0) continue;
      spans.push_back({&each.table, std::span(each.tokens).subspan(done, count), 1});
      saved.push_back(&each);
    }
    if (spans.empty()) return;
    const auto lane = take(gatherer_device().lane());  // what is to be compared
    const std::size_t row = options_.format.row_bytes();
    const auto keep = [&](const KeptRows& kept) {
      EXPECT_TRUE(lane->wait(*kept.there).ok());
      std::vector<PassRows> rows;
      for (std::size_t i = 0; i < saved.size(); ++i) {
        const auto count = spans[i].tokens.size();
        rows.push_back({saved[i]->rows.get(), saved[i]->table.tokens(), kept.first[i],
                        static_cast<int>(count)});
        for (int layer = 0; layer < kept.layers; ++layer) {
          Bytes& part = parts_.emplace_back(count * row);
          part_of_.push_back({saved[i], kept.layer + layer});
          EXPECT_TRUE(lane->copy(part.data(),
                                 kept.rows + layer * kept.layer_bytes + kept.first[i] * row,
                                 part.size())
                          .ok());
        }
      }
      std::sort(rows.begin(), rows.end(),
                [](const PassRows& a, const PassRows& b) { return a.row < b.row; });
      gatherer_device().fail_call(fail_, Counted::kBesideTheLine);
      const auto read = gatherer_->fetch(rows, kept);
      if (wait_for_layers_) gatherer_->flush();
      calls_ = gatherer_device().calls();
      fail_ = std::max(0, fail_ - calls_);
      gatherer_device().fail_call(0);
      return read;
    };
    std::vector<int> before;
    for (const Saved* each : saved) before.push_back(each->table.tokens());
    const Status status = forward_->run(spans, {.on_kept = keep});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(lane->finish().ok());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Bytes& all = part_of_[i].first->hidden[part_of_[i].second];
      all.insert(all.end(), parts_[i].begin(), parts_[i].end());
    }
    parts_.clear();
    part_of_.clear();
    for (std::size_t i = 0; i < saved.size(); ++i) {
      for (int block = before[i] / kBlockTokens; block < saved[i]->table.tokens() / kBlockTokens;
           ++block) {
        const int number = saved[i]->number;
        gatherer_->complete(*saved[i]->rows, block, block_name(number, block),
                            block_name(number, 0));
      }
    }
  }
  void settle() {
    gatherer_->flush();
    store_->flush();
  }

  bool stored(int sequence, int block) const {
    return store_->holds({.name = block_name(sequence, block), .kind = ExtentKind::kHidden},
                         options_.layer_first, options_.layer_last - options_.layer_first);
  }
  // What lies there are the rows that passes have kept.
  void expect_right(int sequence, int block) {
    const std::size_t bytes = kBlockTokens * options_.format.row_bytes();
    int layers = 0;
    for (const PinnedExtent& extent :
         store_->find({.name = block_name(sequence, block), .kind = ExtentKind::kHidden})) {
      for (int part = 0; part < extent.head().layers(); ++part, ++layers) {
        const int layer = extent.head().layer + part;
        Bytes found;
        const Status status = read_parts(*store_, extent, part, 1, found);
        EXPECT_TRUE(status.ok()) << status.message();
        Bytes expected(kBlockTokens * options_.format.stored_bytes());
        const ByteView rows = ByteView(sequences_[sequence]->hidden[layer]);
        EXPECT_TRUE(options_.format
                        .encode(rows.subspan(block * bytes, bytes), kBlockTokens, expected.data())
                        .ok());
        EXPECT_TRUE(found == expected) << sequence << " block " << block << " layer " << layer;
      }
    }
    EXPECT_EQ(layers, options_.layer_last - options_.layer_first);
  }
  // Everything there is is right; how many blocks that is.
  int expect_all_right() {
    int count = 0;
    for (int sequence = 0; sequence < kSequences; ++sequence) {
      for (int block = 0; block < kSavedTokens / kBlockTokens; ++block) {
        if (!stored(sequence, block)) continue;
        expect_right(sequence, block);
        ++count;
      }
    }
    return count;
  }
  // Prompts in any order, prompts beside decoding sequences, passes that are launched as a whole.
  void run_all() {
    pass({0, 100, 30});
    pass({70, 1, 40});
    pass({1, 1, 0});
    for (int i = 0; i < 12; ++i) pass({1, 1, 1});
    pass({50, 20, 50});
    settle();
  }

  const std::size_t pool_bytes_ = 4 * kSequences * model().config().kv_shape().block_bytes();
  const Accelerator::Memory memory_ = take(gatherer_device().allocate(pool_bytes_));
  BlockPool pool_ = take(BlockPool::over(model().config().kv_shape(), {memory_.get(), pool_bytes_},
                                         take(gatherer_device().copies())));
  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
  int stores_ = 0;
  HiddenGathererOptions options_{.format = {HiddenFormat::Values::kExact, ElementType::kBf16, 64}};
  bool wait_for_layers_ = false;
  int fail_ = 0;   // this call of the gatherer from now on
  int calls_ = 0;  // of its last pass
  std::unique_ptr<Store> store_;
  std::unique_ptr<DeviceForward> forward_;
  std::unique_ptr<HiddenGatherer> gatherer_;
  std::vector<std::unique_ptr<Saved>> sequences_;
  std::deque<Bytes> parts_;
  std::vector<std::pair<Saved*, int>> part_of_;
};

TEST_F(DeviceHiddenGathererTest, WhatPassesKeepIsStored) {
  for (const char* const form : {"hidden", "hidden:int8"}) {
    SCOPED_TRACE(form);
    options_.format = take(HiddenFormat::parse(form, model()));
    options_.extent_bytes_min = 2 * kBlockTokens * options_.format.stored_bytes();
    open();
    const int replays = gatherer_device().replays();
    run_all();
    EXPECT_GT(gatherer_device().replays() - replays, 8);
    EXPECT_EQ(expect_all_right(), 6);
    const HiddenGathererFigures figures = gatherer_->figures();
    int rows = 0;
    for (const auto& each : sequences_) rows += each->table.tokens();
    EXPECT_EQ(figures.rows, std::uint64_t(rows) * (options_.layer_last - options_.layer_first));
    EXPECT_EQ(figures.blocks, 6U);
    EXPECT_EQ(figures.tokens_lost, 0U);
    for (const auto& each : sequences_) EXPECT_FALSE(each->rows->lost());
  }
}

// A ring that ends within a layer's rows, and that one pass of all layers goes around.
TEST_F(DeviceHiddenGathererTest, RowsGoAroundTheRingAndWhoWaitsLosesNothing) {
  for (const int rows : {101, 211}) {
    options_.ring_bytes = rows * options_.format.row_bytes() + 5;
    options_.waits = true;
    open();
    run_all();
    EXPECT_EQ(expect_all_right(), 6);
    EXPECT_EQ(gatherer_->figures().tokens_lost, 0U);
    EXPECT_LE(gatherer_->figures().ring_bytes_used_max, rows * options_.format.row_bytes());
  }
  // Of less than the rows of a pass that is launched as a whole.
  options_.ring_bytes = 4 * options_.format.row_bytes();
  open();
  for (int i = 0; i < 4; ++i) pass({1, 1, 1});
  settle();
  EXPECT_EQ(gatherer_->figures().rows, 4U * 3 * (options_.layer_last - options_.layer_first));
  for (const auto& each : sequences_) EXPECT_FALSE(each->rows->lost());
}

TEST_F(DeviceHiddenGathererTest, AFullRingLosesTheSequenceFromThereOn) {
  options_.ring_bytes = 70 * options_.format.row_bytes();
  wait_for_layers_ = true;
  open();
  pass({6, 64, 0});  // all of the ring
  pass({6, 65, 0});
  EXPECT_FALSE(sequences_[0]->rows->lost());
  EXPECT_TRUE(sequences_[1]->rows->lost());
  for (int i = 0; i < 3; ++i) pass({40, 10, 0});  // would fit
  settle();
  EXPECT_TRUE(stored(0, 0) && stored(0, 1) && stored(1, 0));
  EXPECT_EQ(expect_all_right(), 3);
  EXPECT_EQ(gatherer_->figures().tokens_lost, std::uint64_t{kBlockTokens});
}

// Whichever call beside the passes fails: sequences that were in it are not saved from there on,
// which is counted, and what is in the store is right.
TEST_F(DeviceHiddenGathererTest, AnyCallMayFail) {
  int failed = 0;
  for (const bool waits_for_layers : {false, true}) {
    wait_for_layers_ = waits_for_layers;
    for (int n = 1;; n += kSanitized ? 11 : 7) {
      open();
      fail_ = n;
      pass({70, 40, 30});
      pass({1, 30, 40});
      for (int i = 0; i < 3; ++i) pass({1, 1, 1});
      settle();
      const bool over = fail_ > 0;
      fail_ = 0;
      int complete = 0;
      for (const auto& each : sequences_) complete += each->table.tokens() / kBlockTokens;
      const auto lost = static_cast<int>(gatherer_->figures().tokens_lost / kBlockTokens);
      EXPECT_EQ(expect_all_right() + lost, complete) << n;
      EXPECT_TRUE(over ? lost == 0 : true) << n;
      failed += lost > 0 ? 1 : 0;
      if (over) break;
    }
  }
  EXPECT_GT(failed, 5);
}

TEST_F(DeviceHiddenGathererTest, ADeviceWithoutMemoryOrLanesIsAnError) {
  open();
  int failed = 0;
  for (int n = 1;; ++n) {
    gatherer_device().fail_call(n);
    const auto gatherer = HiddenGatherer::create(*store_, model(), options_);
    const bool over = gatherer_device().calls() < n;
    gatherer_device().fail_call(0);
    EXPECT_EQ(gatherer.status().code(), over ? Code::kOk : Code::kInternal);
    if (over) break;
    ++failed;
  }
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace kvlane
