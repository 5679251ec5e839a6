// K and V from hidden states on an emulated device: the bits that a forward pass there gives them,
// in caches of all kinds that devices have.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_projection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "base/random.h"
#include "base/test_results.h"
#include "model/device_forward.h"
#include "model/emulated_accelerator.h"
#include "model/expected_fixture.h"
#include "model/format_codes.h"
#include "model/forward.h"
#include "model/model.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using ::testing::HasSubstr;

constexpr int kProjectedBlocks = 5;
constexpr int kProjectedTokens = kProjectedBlocks * kBlockTokens;
constexpr int kPiece = 128;  // so the last one is shorter

// A cache on an emulated device, coded or in 16 bits, computed with all its hidden states.
struct World {
  World(const char* name, const std::string& text)
      : model(take(Model::load(kModels / name, {.isa = best_isa(), .device = &device}))),
        shape(model->config().kv_shape()),
        format(make_format(text)) {
    if (format) kernels = take(device_codes(*format));
    const int layers = shape.layers;
    const auto forward =
        take(DeviceForward::create(model->on_device(), device, 192, 1, true, kernels, {0, layers}));
    hidden.resize(layers);
    EXPECT_TRUE(table.grow(kProjectedTokens).ok());
    std::vector<std::int32_t> tokens(kProjectedTokens);
    for (int i = 0; i < kProjectedTokens; ++i) {
      tokens[i] = static_cast<std::int32_t>(
          philox4x32(7, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % 96);
    }
    const auto lane = take(device.lane());
    for (int at = 0; at < kProjectedTokens; at += 160) {
      const ForwardSpan span{&table, std::span(tokens).subspan(at, 160), 0};
      const auto keep = [&](const KeptRows& kept) {
        Bytes& kept_rows = hidden[kept.layer];
        kept_rows.resize((at + 160) * row_bytes());
        EXPECT_TRUE(lane->wait(*kept.there).ok());
        EXPECT_TRUE(
            lane->copy(kept_rows.data() + at * row_bytes(), kept.rows, 160 * row_bytes()).ok());
        EXPECT_TRUE(lane->finish().ok());
        return nullptr;
      };
      const Status status = forward->run({&span, 1}, {.on_kept = keep});
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  std::size_t row_bytes() const { return model->config().hidden * sizeof(bf16); }
  std::shared_ptr<const KvFormat> make_format(const std::string& text) const {
    KvTables tables;
    tables_fixture::add_zack_tables(shape, true, tables);
    const RopeTable rope(rope_inverse_frequencies(model->config(), 16), 16);
    return take(make_kv_format(
        text, {.shape = shape, .rope = &rope, .tables = &tables, .isa = model->isa()}));
  }
  BlockTable new_table() { return format ? BlockTable(sealed, rows, {}) : BlockTable(rows); }
  BlockPool& pool() { return format ? sealed : rows; }
  std::size_t slab_bytes(int layer) { return pool().slab_bytes(layer); }

  Bytes slab(const BlockTable& of, int block, int layer) {
    Bytes bytes(slab_bytes(layer));
    EXPECT_TRUE(
        device.copy(bytes.data(), pool().slab_memory(of.id(block), layer), bytes.size()).ok());
    EXPECT_TRUE(device.finish().ok());
    return bytes;
  }
  void expect_same(const BlockTable& back, int layer) {
    for (int block = 0; block < kProjectedBlocks; ++block) {
      EXPECT_TRUE(slab(back, block, layer) == slab(table, block, layer)) << block << " " << layer;
    }
  }
  // All tokens of a layer in pieces.
  Status project(DeviceProjection& projection, const BlockTable& back, int layer) {
    for (int at = 0; at < kProjectedTokens; at += kPiece) {
      const int count = std::min(kPiece, kProjectedTokens - at);
      // While the piece before is on its way.
      std::memcpy(projection.room(), hidden[layer].data() + at * row_bytes(), count * row_bytes());
      KVLANE_TRY(projection.finish());
      KVLANE_TRY(projection.give({&back, at, count, layer}));
    }
    return projection.finish();
  }

  BlockPool make_pool(const Accelerator::Memory& memory, std::size_t bytes, bool codes) {
    const MemoryCopy copy = take(device.copies());
    if (!codes || !format) return take(BlockPool::over(shape, {memory.get(), bytes}, copy));
    return take(BlockPool::over_sealed(shape, format->slab_sizes(), {memory.get(), bytes}, copy));
  }
  std::size_t rows_bytes() const { return 2 * kProjectedBlocks * shape.block_bytes(); }
  std::size_t sealed_bytes() const {
    return format ? 2 * kProjectedBlocks * format->slab_sizes().block_bytes() : rows_bytes();
  }

  EmulatedAccelerator device;
  const std::unique_ptr<Model> model;
  const KvShape shape;
  const std::shared_ptr<const KvFormat> format;
  std::optional<DeviceFormat> kernels;
  const Accelerator::Memory rows_memory = take(device.allocate(rows_bytes()));
  const Accelerator::Memory sealed_memory = take(device.allocate(sealed_bytes()));
  BlockPool rows = make_pool(rows_memory, rows_bytes(), false);
  BlockPool sealed = make_pool(sealed_memory, sealed_bytes(), true);
  BlockTable table = new_table();
  std::vector<Bytes> hidden;  // of each layer
};

// With norms of heads and without, with rotations and without.
TEST(DeviceProjection, KAndVHaveTheBitsOfAForwardPass) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama-gqa-bf16-llama3-sharded", "bf16"},
      {"llama-mha-bf16-tied", "bf16"},
      {"qwen3-gqa-bf16", "bf16"},
      {"llama-gqa-bf16-llama3-sharded", "hack"},
      {"llama-gqa-bf16-llama3-sharded", "hack:k=4,v=4,p=64"},
      {"qwen3-gqa-bf16", "hack"},
      {"qwen3-gqa-bf16", "zack:keep=0.5"}};
  for (const auto& [name, format] : cases) {
    SCOPED_TRACE(std::string(name) + " " + format);
    World world(name, format);
    const auto projection = take(
        DeviceProjection::create(world.model->on_device(), world.device, kPiece, world.kernels));
    BlockTable back = world.new_table();
    ASSERT_TRUE(back.grow(kProjectedTokens).ok());
    for (int layer = world.shape.layers - 1; layer >= 0; --layer) {
      const Status status = world.project(*projection, back, layer);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (int layer = 0; layer < world.shape.layers; ++layer) world.expect_same(back, layer);
  }
}

// Whichever call fails, it says so, and the layer can be written once more.
TEST(DeviceProjection, AnyCallMayFail) {
  for (const char* const format : {"bf16", "hack"}) {
    World world("llama-gqa-bf16-llama3-sharded", format);
    BlockTable back = world.new_table();
    ASSERT_TRUE(back.grow(kProjectedTokens).ok());
    int failed = 0;
    for (int n = 1;; ++n) {
      std::unique_ptr<DeviceProjection> projection;
      world.device.fail_call(n);
      auto opened =
          DeviceProjection::create(world.model->on_device(), world.device, kPiece, world.kernels);
      Status status = opened.status();
      if (opened.ok()) {
        projection = std::move(*opened);
        status = world.project(*projection, back, 1);
      }
      const bool over = world.device.calls() < n;
      world.device.fail_call(0);
      EXPECT_EQ(status.code(), over ? Code::kOk : Code::kInternal) << n;
      if (projection) {
        EXPECT_TRUE(world.project(*projection, back, 1).ok()) << n;
        world.expect_same(back, 1);
      }
      if (over) break;
      ++failed;
    }
    EXPECT_GT(failed, 10) << format;
  }
}

TEST(DeviceProjection, SaysWhatCannotBeSealed) {
  World world("llama-gqa-bf16-llama3-sharded", "hack");
  const auto projection =
      take(DeviceProjection::create(world.model->on_device(), world.device, kPiece, world.kernels));
  BlockTable back = world.new_table();
  ASSERT_TRUE(back.grow(kProjectedTokens).ok());
  const bf16 infinity = to_bf16(std::numeric_limits<float>::infinity());
  std::memcpy(world.hidden[1].data() + 70 * world.row_bytes(), &infinity, sizeof infinity);
  const Status status = world.project(*projection, back, 1);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("layer 1"));
}

TEST(DeviceProjection, RefusesWhatIsNoPieceOfASequence) {
  World world("llama-gqa-bf16-llama3-sharded", "bf16");
  const DeviceModel& model = world.model->on_device();
  for (const int rows : {0, -64, 100}) {
    EXPECT_EQ(DeviceProjection::create(model, world.device, rows).status().code(),
              Code::kInvalidArgument);
  }
  const auto projection = take(DeviceProjection::create(model, world.device, kPiece));
  const auto refused = [&](int first, int count, int layer) {
    return projection->give({&world.table, first, count, layer}).code() == Code::kInternal;
  };
  EXPECT_TRUE(refused(-64, 64, 0));
  EXPECT_TRUE(refused(32, 64, 0));
  EXPECT_TRUE(refused(0, 0, 0));
  EXPECT_TRUE(refused(0, 100, 0));
  EXPECT_TRUE(refused(0, 192, 0));
  EXPECT_TRUE(refused(model.positions(), 64, 0));
  EXPECT_TRUE(refused(0, 64, -1));
  EXPECT_TRUE(refused(0, 64, world.shape.layers));
  EXPECT_TRUE(projection->finish().ok());
}

}  // namespace
}  // namespace kvlane
