// Hidden states from rank to rank: everybody has the rows that one has read, and knows the turns.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "format/shape.h"
#include "model/local_ranks.h"
#include "model/synth.h"
#include "restore/rank_rows.h"

namespace kvlane {
namespace {

constexpr const char* kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "head_dim": 32, "num_hidden_layers": 5, "vocab_size": 200, "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16", "tie_word_embeddings": false, "num_attention_heads": 4,
    "num_key_value_heads": 2})";

// Two ranks of a model of five layers.
class RankRowsTest : public ::testing::Test {
 protected:
  RankRowsTest() {
    const Status written = write_synthetic_checkpoint({.config_json = kConfig}, model());
    EXPECT_TRUE(written.ok()) << written.message();
  }
  std::filesystem::path model() const { return directory_.path() / "model"; }
  std::unique_ptr<Model> rank(int number) const {
    return take(Model::load(model(), {.part = {1, 0, 2, number}}));
  }

  const TemporaryDirectory directory_;
};

// [blocks] of rows in a form, as the store has them.
std::vector<Bytes> stored_rows(const HiddenFormat& form, int blocks) {
  std::vector<Bytes> stored;
  std::uint32_t draw = 0;
  for (int block = 0; block < blocks; ++block) {
    std::vector<std::uint16_t> rows(kBlockTokens * form.row_bytes() / 2);
    // BF16 between 1 and 2, or of that size.
    for (std::uint16_t& value : rows) {
      value = static_cast<std::uint16_t>(0x3F80 + philox4x32(2, {draw++, 0, 0, 0})[0] % 128);
    }
    Bytes& bytes = stored.emplace_back(kBlockTokens * form.stored_bytes());
    for (int row = 0; row < kBlockTokens; ++row) {
      const auto* const from = reinterpret_cast<const std::byte*>(rows.data());
      EXPECT_TRUE(form.encode(ByteView(from + row * form.row_bytes(), form.row_bytes()), 1,
                              bytes.data() + row * form.stored_bytes())
                      .ok());
    }
  }
  return stored;
}

TEST_F(RankRowsTest, EveryLayerIsOneRanksAndTurnsGoRound) {
  LocalRanks group(1, 2);
  const auto first_model = rank(0), second_model = rank(1);
  const RankRows first(*first_model, *group.exchange(first_model->part()));
  const RankRows second(*second_model, *group.exchange(second_model->part()));
  const std::vector<int> all = {0, 1, 2, 3, 4}, turns = {0, 2, 1, 3, 4};
  for (const int layer : all) {
    EXPECT_EQ(first.stores(layer), layer < 2);
    EXPECT_EQ(second.stores(layer), layer >= 2);
  }
  EXPECT_EQ(first.in_turns(all), turns);
  EXPECT_EQ(second.in_turns(all), turns);
  EXPECT_EQ(first.in_turns(std::vector<int>{1, 3, 4}), (std::vector<int>{1, 3, 4}));
  EXPECT_FALSE(first.stores(5));
  EXPECT_FALSE(second.stores(5));
}

constexpr int kSharedBlocks = 3;

// What a rank got of each layer that was shared, and was told.
struct Got {
  std::vector<Bytes> rows;
  std::vector<Status> statuses;
};

// Layer 0 and 4 are whole, of layer 1 a block is lost, and of layer 2 one is cut short.
Got share_all(const Model& model, RankExchange& exchange, HiddenFormat::Values values,
              const std::vector<Bytes>& stored) {
  RankRows rows(model, exchange);
  Got got;
  for (const int layer : {0, 1, 2, 4}) {
    std::vector<ByteView> own;
    for (int block = 0; block < kSharedBlocks && rows.stores(layer); ++block) {
      own.emplace_back(stored[block]);
      if (layer == 1 && block == 1) own.back() = {};
      if (layer == 2 && block == 2) own.back() = own.back().first(7);
    }
    const auto shared = rows.share(layer, values, own, kSharedBlocks * kBlockTokens);
    got.statuses.push_back(shared.status());
    got.rows.emplace_back();
    if (shared.ok()) got.rows.back().assign(shared->begin(), shared->end());
  }
  return got;
}

TEST_F(RankRowsTest, AllHaveWhatOneHasRead) {
  for (const auto values : {HiddenFormat::Values::kExact, HiddenFormat::Values::kInt8}) {
    LocalRanks group(1, 2);
    const auto any = rank(0);
    const HiddenFormat form(values, hidden_type(*any), any->config().hidden);
    const std::vector<Bytes> stored = stored_rows(form, kSharedBlocks);
    std::vector<Got> got(2);
    std::vector<std::thread> threads;
    for (int number = 0; number < 2; ++number) {
      threads.emplace_back([&, number] {
        const auto model = rank(number);
        got[number] = share_all(*model, *group.exchange(model->part()), values, stored);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::size_t block_bytes = kBlockTokens * form.row_bytes();
    Bytes whole(kSharedBlocks * block_bytes);
    for (int block = 0; block < kSharedBlocks; ++block) {
      std::byte* const to = whole.data() + block * block_bytes;
      ASSERT_TRUE(form.decode(stored[block], kBlockTokens, to).ok());
    }
    Bytes one_lost = whole;
    std::memset(one_lost.data() + block_bytes, 0, block_bytes);
    for (const Got& each : got) {
      EXPECT_EQ(each.rows[0], whole);
      EXPECT_EQ(each.rows[1], one_lost);
      EXPECT_EQ(each.rows[3], whole);
    }
    // Who cannot read its rows is told so; the other one goes on, with zeros.
    EXPECT_TRUE(got[0].statuses[2].ok());
    EXPECT_EQ(got[1].statuses[2].code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace kvlane
