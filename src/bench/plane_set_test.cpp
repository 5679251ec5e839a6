// Where captured values land in other shapes, and what rounding makes of them; captured planes
// against the cache and the embeddings they come from.
// SPDX-License-Identifier: Apache-2.0
#include "bench/plane_set.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/bf16.h"
#include "base/test_paths.h"
#include "model/forward.h"

namespace kvlane {
namespace {

constexpr int kPlaneRows = kBlockTokens;

// Two layers of pages [64][4]; a value tells where it was: 1000 * source + 100 * page + 10 * (row
// % 10) + channel. Integers up to 2^16 are told apart, not rounded: they are bits here.
CapturedPlanes numbered(int pages) {
  CapturedPlanes captured(2, {.kv_heads = 1, .rows = kPlaneRows, .head_dim = 4},
                          {.kv_heads = 1, .rows = kPlaneRows, .head_dim = 4});
  for (int layer = 0; layer < 2; ++layer) {
    for (const Tensor tensor : {Tensor::kK, Tensor::kV}) {
      const int source = 2 * layer + static_cast<int>(tensor);
      for (int page = 0; page < pages; ++page) {
        for (int row = 0; row < kPlaneRows; ++row) {
          for (int channel = 0; channel < 4; ++channel) {
            captured.values(layer, tensor)
                .push_back(
                    static_cast<std::uint16_t>(10'000 * source + 1000 * page + 10 * row + channel));
          }
        }
      }
    }
  }
  return captured;
}

std::uint16_t value(const PlaneSet& set, std::size_t plane, int head, int row, int channel) {
  const PlaneShape& shape = set.shape();
  std::uint16_t bits;
  std::memcpy(&bits,
              set.plane(plane).data() +
                  2 * ((std::size_t(head) * kPlaneRows + row) * shape.head_dim + channel),
              sizeof bits);
  return bits;
}

TEST(PlaneSet, JoinsPagesSideBySide) {
  const CapturedPlanes captured = numbered(3);
  const auto set = PlaneSet::lay_out(captured, 1, 8, 5);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->sources(), 4U);
  EXPECT_EQ(set->bytes(), 5U * 64 * 8 * 2);
  EXPECT_EQ(value(*set, 0, 0, 7, 3), 73);       // K of layer 0, page 0
  EXPECT_EQ(value(*set, 0, 0, 7, 4), 1070);     // page 1
  EXPECT_EQ(value(*set, 3, 0, 63, 1), 30'631);  // V of layer 1
  EXPECT_EQ(value(*set, 4, 0, 5, 0), 2050);     // K of layer 0 again: page 2
  EXPECT_EQ(value(*set, 4, 0, 5, 4), 50);       // and over
  EXPECT_EQ(PlaneSet::planes_without_repeats(captured, 1, 8), 4U);
}

TEST(PlaneSet, CutsPagesApart) {
  const CapturedPlanes captured = numbered(2);
  const auto set = PlaneSet::lay_out(captured, 2, 2, 8);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(value(*set, 1, 0, 9, 1), 10'091);
  EXPECT_EQ(value(*set, 1, 1, 9, 1), 10'093);
  EXPECT_EQ(value(*set, 5, 0, 9, 0), 11'090);
  EXPECT_EQ(PlaneSet::planes_without_repeats(captured, 2, 2), 8U);
}

TEST(PlaneSet, RefusesHeadsThatDoNotFit) {
  EXPECT_EQ(PlaneSet::lay_out(numbered(1), 1, 6, 1).status().code(), Code::kInvalidArgument);
}

TEST(PlaneSet, NarrowedValuesAreScaledByTheirSource) {
  CapturedPlanes captured(1, {.kv_heads = 1, .rows = kPlaneRows, .head_dim = 2},
                          {.kv_heads = 1, .rows = kPlaneRows, .head_dim = 2});
  captured.values(0, Tensor::kK).assign(kPlaneRows * 2, to_bf16(1.5F).bits);
  captured.values(0, Tensor::kV).assign(kPlaneRows * 2, to_bf16(-0.001F).bits);
  const auto set = PlaneSet::lay_out(captured, 1, 2, 2);
  const std::vector<int> shifts = set->shifts_to(448);
  EXPECT_EQ(shifts, (std::vector<int>{8, 18}));  // 384; 262
  const auto e4m3 = set->narrowed(ElementType::kFp8E4m3, shifts);
  ASSERT_TRUE(e4m3.ok());
  EXPECT_EQ(e4m3->bytes(), set->bytes() / 2);
  EXPECT_EQ(e4m3->plane(0)[5], std::byte{0x7C});  // 1.5 * 2^8
  EXPECT_EQ(e4m3->plane(1)[5], std::byte{0xF8});  // -256
  const auto fp16 = set->narrowed(ElementType::kFp16, {});
  std::uint16_t first;
  std::memcpy(&first, fp16->data(), sizeof first);
  EXPECT_EQ(first, 0x3E00);
}

TEST(CapturedPlanes, AreWhatTheCacheAndTheLayersHold) {
  const std::string directory =
      std::string(kSourceDir) + "/tests/fixtures/models/llama-gqa-bf16-llama3-sharded";
  auto model = Model::load(directory, {.isa = best_isa()});
  ASSERT_TRUE(model.ok());
  const KvShape shape = (*model)->config().kv_shape();
  std::vector<std::int32_t> tokens(150);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(i * i % (*model)->config().vocab);
  }
  std::uint64_t told = 0;
  const auto captured =
      capture_planes(**model, tokens, [&](std::uint64_t done, std::uint64_t) { told = done; });
  ASSERT_TRUE(captured.ok()) << captured.status().message();
  EXPECT_EQ(told, 128U);  // whole blocks

  auto pool = BlockPool::create(shape, 2 * shape.block_bytes());
  BlockTable table(*pool);
  ASSERT_TRUE(table.grow(128).ok());
  const auto forward = std::move(*Forward::create(**model, 128, 1));
  const ForwardSpan span{&table, std::span(tokens).first(128), 0};
  ASSERT_TRUE(forward->run({&span, 1}, {}).ok());
  const std::size_t page = shape.page_plane_elements();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const auto& k = captured->values(layer, Tensor::kK);
    const auto& v = captured->values(layer, Tensor::kV);
    ASSERT_EQ(k.size(), 2 * shape.kv_heads * page);
    ASSERT_EQ(captured->values(layer, Tensor::kHidden).size(),
              std::size_t{128} * (*model)->config().hidden);
    for (int block = 0; block < 2; ++block) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::uint16_t* const own = pool->page(table.id(block), layer, head);
        const std::size_t at = (std::size_t(block) * shape.kv_heads + head) * page;
        EXPECT_EQ(std::memcmp(k.data() + at, own, 2 * page), 0);
        EXPECT_EQ(std::memcmp(v.data() + at, own + page, 2 * page), 0);
      }
    }
  }
  std::vector<float> embedding((*model)->config().hidden);
  (*model)->embed(tokens[127], 127, embedding.data());
  const auto& hidden = captured->values(0, Tensor::kHidden);
  for (std::size_t i = 0; i < embedding.size(); ++i) {
    EXPECT_EQ(hidden[127 * embedding.size() + i], to_bf16(embedding[i]).bits);
  }
}

TEST(CapturedPlanes, NeedABlock) {
  const std::string directory =
      std::string(kSourceDir) + "/tests/fixtures/models/llama-gqa-bf16-llama3-sharded";
  auto model = Model::load(directory, {.isa = best_isa()});
  ASSERT_TRUE(model.ok());
  const std::vector<std::int32_t> tokens(63, 1);
  EXPECT_EQ(capture_planes(**model, tokens, {}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
