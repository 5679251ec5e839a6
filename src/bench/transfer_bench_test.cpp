// Recorded KV in another shape, and a small measurement within this process.
// SPDX-License-Identifier: Apache-2.0
#include "bench/transfer_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/file.h"
#include "base/test_paths.h"
#include "base/test_results.h"
#include "bench/recorded_kv.h"
#include "codec/codec.h"
#include "model/tokenizer.h"

namespace kvlane {
namespace {

const std::string kModel = std::string(kSourceDir) + "/models/kvlane-tiny-gqa";
const std::string kText = std::string(kSourceDir) + "/README.md";

// Channels keep what makes codecs work: their own scale. No slab is a copy of another.
TEST(RecordedKv, SpreadsATrainedModelsValuesOverALargerShape) {
  const auto tokenizer = take(Tokenizer::load(kModel));
  auto tokens = take(tokenizer.encode(take(read_text_file(kText, 1 << 20))));
  tokens.resize(500);
  const auto model = take(Model::load(kModel, {.isa = best_isa()}));
  const KvShape shape{.layers = 4, .kv_heads = 8, .head_dim = 128};
  constexpr int kRows = 130;
  auto pool = take(BlockPool::create(shape, blocks_for(kRows) * shape.block_bytes()));
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(kRows).ok());
  ASSERT_TRUE(fill_with_recorded_kv(*model, tokens, table, kRows).ok());

  const PlaneShape plane = plane_shape(shape, kBlockTokens);
  std::set<std::string> planes;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int block = 0; block < 2; ++block) {
      std::vector<std::byte> k;
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::span page(pool.page(table.id(block), layer, head), shape.page_plane_elements());
        const ByteView bytes = std::as_bytes(page);
        k.insert(k.end(), bytes.begin(), bytes.end());
      }
      const Codec& codec = **find_codec("splitzip:channel");
      std::vector<std::byte> coded(codec.bound(plane));
      const std::size_t length = codec.encode(plane, k, nullptr, coded);
      EXPECT_GT(static_cast<double>(k.size()) / static_cast<double>(length), 1.4)
          << "layer " << layer << ", block " << block;
      planes.emplace(as_text(k));
    }
  }
  EXPECT_EQ(planes.size(), std::size_t(2 * shape.layers)) << "two planes are alike";
}

TEST(RecordedKv, NeedsTokens) {
  const auto model = take(Model::load(kModel, {.isa = best_isa()}));
  const KvShape shape{.layers = 1, .kv_heads = 1, .head_dim = 64};
  auto pool = take(BlockPool::create(shape, shape.block_bytes()));
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(1).ok());
  EXPECT_EQ(fill_with_recorded_kv(*model, {}, table, 1).code(), Code::kInvalidArgument);
}

TransferBenchOptions small() {
  TransferBenchOptions options;
  options.directory = kModel;
  options.text = kText;
  options.tokens = 70;  // a whole block and a part of one
  options.layers = 2;
  options.rounds = 3;
  options.isa = best_isa();
  return options;
}

TEST(TransferBench, SendsWithEveryCodecAndComparesWithTheFirst) {
  TransferBenchOptions options = small();
  std::vector<std::string> told;
  options.progress = [&](std::string_view what) { told.emplace_back(what); };
  const Report report = take(bench_transfer(options));
  EXPECT_THAT(told, testing::Contains("round 3 of 3: splitzip:channel"));
  std::map<std::string, Figure> figures;
  for (const Figure& figure : report.results) figures[figure.name] = figure;
  EXPECT_EQ(figures.at("transfer_bytes").value, 70.0 * 2 * 8 * 128 * 4);
  EXPECT_NEAR(figures.at("transfer_splitzip_bytes_ratio").value, 1.32, 0.03);
  EXPECT_NEAR(figures.at("transfer_splitzip_channel_bytes_ratio").value, 1.47, 0.06);
  EXPECT_NEAR(figures.at("transfer_auto_bytes_ratio").value, 1, 0.01) << "nobody ever waited";
  for (const char* codec : {"none", "splitzip", "splitzip_channel", "auto"}) {
    const std::string name = "transfer_" + std::string(codec);
    const Figure& seconds = figures.at(name + "_seconds");
    EXPECT_GT(seconds.value, 0);
    EXPECT_EQ(seconds.baseline, figures.at("transfer_none_seconds").value);
    EXPECT_DOUBLE_EQ(figures.at(name + "_speed").value,
                     figures.at("transfer_bytes").value / seconds.value * 1e-9);
    EXPECT_EQ(figures.contains(name + "_time_ratio"), name != "transfer_none");
    EXPECT_FALSE(figures.contains(name + "_efficiency"));
  }
  for (const char* codec : {"transfer_splitzip", "transfer_splitzip_channel"}) {
    const std::string name = codec;
    const double encode = figures.at(name + "_encode_speed").value;
    const double decode = figures.at(name + "_decode_speed").value;
    EXPECT_DOUBLE_EQ(figures.at(name + "_crossover").value, std::min(encode, decode));
    EXPECT_GT(figures.at(name + "_crossover_serial").value, 0);
    EXPECT_LT(figures.at(name + "_crossover_serial").value, std::min(encode, decode) / 2);
  }
  EXPECT_FALSE(figures.contains("transfer_none_crossover"));
  EXPECT_DOUBLE_EQ(figures.at("transfer_auto_slowdown").value,
                   1 / figures.at("transfer_auto_time_ratio").value);
  EXPECT_EQ(figures.at("transfer_auto_slowdown").goal, 1.02);
}

TEST(TransferBench, ShapedLinksHaveGoalsOfTheirOwn) {
  TransferBenchOptions options = small();
  options.shaped = true;
  options.codecs = {"splitzip", "none"};
  const Report report = take(bench_transfer(options));
  const auto find = [&](const std::string& name) {
    const auto at = std::ranges::find(report.results, name, &Figure::name);
    EXPECT_NE(at, report.results.end()) << name;
    return *at;
  };
  const double bytes = find("transfer_none_bytes_ratio").value;
  EXPECT_LT(bytes, 0.8) << "it is compared with the first";
  EXPECT_DOUBLE_EQ(find("transfer_none_efficiency").value,
                   find("transfer_none_time_ratio").value / bytes);
  EXPECT_EQ(find("transfer_none_efficiency").goal, 0.97);
}

TEST(TransferBench, ASenderWithoutReceiverSaysSo) {
  TransferBenchOptions options = small();
  options.send_to = Address{"127.0.0.1", 1};
  EXPECT_EQ(bench_transfer(options).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace kvlane
