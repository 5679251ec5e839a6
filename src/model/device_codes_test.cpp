// Passes over coded caches on emulated devices: slabs are sealed to the CPU's bytes, logits are
// near the CPU's, and neither chunks nor graphs change a bit.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/test_results.h"
#include "cpu/memory.h"
#include "model/device_forward.h"
#include "model/emulated_accelerator.h"
#include "model/expected_fixture.h"
#include "model/format_codes.h"
#include "model/forward.h"
#include "model/forward_fixture.h"
#include "model/model.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using ::testing::HasSubstr;
using Logits = std::vector<float>;
using forward_fixture::random_tokens;

constexpr const char* kName = "llama-gqa-bf16-llama3-sharded";
constexpr int kCodesRowsMax = 256;
constexpr int kCodesBlocks = 8;

// Of heads that have something to drop.
constexpr const char* kWideName = "qwen3-gqa-bf16";

const char* model_of(const std::string& format) {
  return format.starts_with("zack") ? kWideName : kName;
}
const Model& cpu_model(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Model>> models;
  std::unique_ptr<Model>& model = models[name];
  if (!model) model = take(Model::load(kModels / name, {.isa = best_isa()}));
  return *model;
}

std::shared_ptr<const KvFormat> format_of_model(const std::string& text) {
  const Model& model = cpu_model(model_of(text));
  const KvShape shape = model.config().kv_shape();
  KvTables tables;
  tables_fixture::add_zack_tables(shape, true, tables);
  return take(make_kv_format(
      text, {.shape = shape, .rope = &model.rope(), .tables = &tables, .isa = model.isa()}));
}

// A coded cache on an emulated device, and passes over it.
struct CodesRunner {
  explicit CodesRunner(const std::string& text, bool replays = true)
      : format(format_of_model(text)),
        model(take(Model::load(kModels / model_of(text), {.isa = best_isa(), .device = &device}))),
        shape(model->config().kv_shape()),
        rows_memory(take(device.allocate(kCodesBlocks * shape.block_bytes()))),
        sealed_memory(take(device.allocate(sealed_bytes()))),
        rows(take(BlockPool::over(shape, {rows_memory.get(), kCodesBlocks * shape.block_bytes()},
                                  take(device.copies())))),
        sealed(take(BlockPool::over_sealed(shape, format->slab_sizes(),
                                           {sealed_memory.get(), sealed_bytes()},
                                           take(device.copies())))),
        forward(take(DeviceForward::create(model->on_device(), device, kCodesRowsMax, 2, replays,
                                           take(device_codes(*format))))) {}

  std::size_t sealed_bytes() const {
    return std::size_t{kCodesBlocks} * format->slab_bytes() * shape.layers;
  }
  BlockTable table() { return BlockTable(sealed, rows, format->window()); }

  // Appends `tokens` in pieces of `chunk`; the logits after each piece.
  std::vector<Logits> run(BlockTable& table, std::span<const std::int32_t> tokens, int chunk) {
    EXPECT_TRUE(table.grow(table.tokens() + static_cast<int>(tokens.size())).ok());
    std::vector<Logits> all;
    while (!tokens.empty()) {
      const auto piece = tokens.first(std::min<std::size_t>(chunk, tokens.size()));
      tokens = tokens.subspan(piece.size());
      const ForwardSpan span{&table, piece, 1};
      const Status status = forward->run({&span, 1}, {});
      EXPECT_TRUE(status.ok()) << status.message();
      const auto logits = forward->logits(0);
      all.emplace_back(logits.begin(), logits.end());
    }
    return all;
  }

  std::vector<std::byte> read(const std::byte* from, std::size_t bytes) {
    std::vector<std::byte> copy(bytes);
    EXPECT_TRUE(device.copy(copy.data(), from, bytes).ok());
    EXPECT_TRUE(device.finish().ok());
    return copy;
  }

  EmulatedAccelerator device;
  std::shared_ptr<const KvFormat> format;
  std::unique_ptr<Model> model;
  KvShape shape;
  Accelerator::Memory rows_memory, sealed_memory;
  BlockPool rows, sealed;
  std::unique_ptr<DeviceForward> forward;
};

// A block that a chunk completes, and one that a single token does.
TEST(DeviceCodes, SlabsAreThoseThatTheCpuSeals) {
  const auto tokens = random_tokens(130, 96, 5);
  for (const char* const text : {"hack:recent=6", "hack:p=64,recent=6", "zack:keep=0.6,recent=6"}) {
    SCOPED_TRACE(text);
    CodesRunner runner(text);
    BlockTable table = runner.table();
    const std::span<const std::int32_t> all(tokens);
    runner.run(table, all.first(126), 70);
    runner.run(table, all.subspan(126), 1);
    for (int block = 0; block < 2; ++block) {
      for (int layer = 0; layer < runner.shape.layers; ++layer) {
        const auto rows = runner.read(runner.rows.slab_memory(table.rows_id(block), layer),
                                      runner.shape.slab_bytes());
        const auto slab = runner.read(runner.sealed.slab_memory(table.id(block), layer),
                                      runner.sealed.slab_sizes().largest());
        auto from = take(PageBuffer::allocate(rows.size()));
        auto expected = take(PageBuffer::allocate(slab.size()));
        std::memcpy(from.data(), rows.data(), rows.size());
        ASSERT_TRUE(runner.format
                        ->seal({layer, block * kBlockTokens},
                               reinterpret_cast<const std::uint16_t*>(from.data()), expected.data())
                        .ok());
        ASSERT_EQ(0, std::memcmp(slab.data(), expected.data(), slab.size()))
            << "block " << block << ", layer " << layer;
      }
    }
  }
}

Logits on_cpu(const Model& model, const KvFormat* format, std::span<const std::int32_t> tokens) {
  const KvShape shape = model.config().kv_shape();
  auto rows = take(BlockPool::create(shape, kCodesBlocks * shape.block_bytes()));
  auto sealed = take(BlockPool::create_sealed(
      shape, format ? format->slab_sizes() : SlabSizes(shape.layers, 64), std::size_t{1} << 22));
  BlockTable table = format ? BlockTable(sealed, rows, format->window()) : BlockTable(rows);
  const auto forward = take(Forward::create(model, kCodesRowsMax, 1, format));
  EXPECT_TRUE(table.grow(static_cast<int>(tokens.size())).ok());
  const ForwardSpan span{&table, tokens, 1};
  EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
  const auto logits = forward->logits(0);
  return {logits.begin(), logits.end()};
}

double distance(const Logits& a, const Logits& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

// By prefill attention, and the last tokens by decode attention. What sums in other orders change,
// codes that fall the other way included, is a small part of what the format changes.
TEST(DeviceCodes, LogitsAreNearTheCpus) {
  const auto tokens = random_tokens(200, 96, 5);
  const std::span<const std::int32_t> all(tokens);
  for (const char* const text : {"hack", "hack:k=4,v=4,p=64,sink=1", "zack:keep=0.5,sink=1"}) {
    SCOPED_TRACE(text);
    const auto format = format_of_model(text);
    const Model& model = cpu_model(model_of(text));
    const Logits expected = on_cpu(model, format.get(), all);
    const double of_format = distance(expected, on_cpu(model, nullptr, all));
    CodesRunner runner(text);
    BlockTable prefilled = runner.table();
    const Logits prefill = runner.run(prefilled, all, kCodesRowsMax).back();
    prefilled.clear();
    BlockTable decoded = runner.table();
    runner.run(decoded, all.first(198), kCodesRowsMax);
    const Logits decode = runner.run(decoded, all.subspan(198), 1).back();
    EXPECT_LT(distance(prefill, expected), 0.3 * of_format);
    EXPECT_LT(distance(decode, expected), 0.3 * of_format);
  }
}

TEST(DeviceCodes, NoChunkingOfAPromptChangesABit) {
  const auto tokens = random_tokens(200, 96, 5);
  for (const char* const text : {"hack:recent=1", "zack:keep=0.5"}) {
    SCOPED_TRACE(text);
    CodesRunner runner(text);
    BlockTable whole = runner.table();
    const Logits expected = runner.run(whole, tokens, kCodesRowsMax).back();
    whole.clear();
    BlockTable table = runner.table();
    EXPECT_EQ(runner.run(table, tokens, 110).back(), expected);
  }
}

// Steps in which blocks are completed included.
TEST(DeviceCodes, GraphsChangeNoBit) {
  const auto tokens = random_tokens(138, 96, 5);
  const std::span<const std::int32_t> all(tokens);
  for (const char* const text : {"hack:recent=1", "zack:keep=0.5"}) {
    SCOPED_TRACE(text);
    std::vector<Logits> logits[2];
    for (const bool replays : {false, true}) {
      CodesRunner runner(text, replays);
      BlockTable table = runner.table();
      runner.run(table, all.first(120), 120);
      logits[replays] = runner.run(table, all.subspan(120), 1);
      EXPECT_EQ(runner.device.replays() > 10, replays);
    }
    EXPECT_EQ(logits[0], logits[1]);
  }
}

TEST(DeviceCodes, SaysWhichLayerCannotBeSealed) {
  CodesRunner runner("hack");
  const auto pass = take(DeviceCodedPass::create(take(device_codes(*runner.format)),
                                                 cpu_model(kName).config(), runner.device, 4));
  const KvShape& shape = runner.shape;
  // Of zeros in all layers, and infinity in layer 1.
  std::vector<std::byte> block(shape.block_bytes());
  block[shape.slab_bytes() + 1] = std::byte{0x7F};
  block[shape.slab_bytes()] = std::byte{0x80};
  const HackSealPlace places[] = {{0, 0}, {-1, -1}};
  EXPECT_TRUE(runner.device.copy(runner.rows.block(0), block.data(), block.size()).ok());
  pass->begin(2, 0, shape.layers);
  for (int layer = 0; layer < shape.layers; ++layer) {
    EXPECT_TRUE(pass->seal({.index = layer,
                            .rows = runner.rows.slab_memory(0, layer),
                            .rows_block_bytes = runner.rows.block_bytes(),
                            .sealed = runner.sealed.slab_memory(0, layer),
                            .sealed_block_bytes = runner.sealed.block_bytes()},
                           places)
                    .ok());
  }
  EXPECT_TRUE(pass->fetch_verdicts().ok());
  EXPECT_TRUE(runner.device.finish().ok());
  EXPECT_THAT(pass->check(1).message(), HasSubstr("layer 1"));
  EXPECT_TRUE(pass->check(0).ok());
}

TEST(DeviceCodes, FormatsWithoutKernels) {
  for (const char* const text :
       {"int8", "kivi:bits=2,group=32", "hack:k=8,v=8", "hack:k=4,v=2", "hack:p=64,round=sr",
        "hack:compute=dequantise", "hack:p=64,diag=int8", "hack:p=64,ktail=code",
        "hack:k=2,v=2,p=64,meta=bf16", "zack:keep=0.5+int8"}) {
    const auto codes = device_codes(*format_of_model(text));
    ASSERT_EQ(codes.status().code(), Code::kUnsupported) << text;
    EXPECT_THAT(codes.status().message(), HasSubstr("has no kernels for devices")) << text;
  }
}

// Kernels turn Q and K alike.
TEST(DeviceCodes, RefusesRotationsOfProducts) {
  const KvShape shape = cpu_model(kWideName).config().kv_shape();
  KvTables tables;
  tables_fixture::add_zack_tables(shape, true, tables);
  tables_fixture::stretch_zack_rotations(shape, tables);
  const auto format = take(make_kv_format("zack:keep=0.5", {.shape = shape, .tables = &tables}));
  EXPECT_THAT(device_codes(*format).status().message(), HasSubstr("rotations of products"));
}

}  // namespace
}  // namespace kvlane
