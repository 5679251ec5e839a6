// What a receiver leaves in the blocks of a sequence: short ones through the caches, long ones past
// them; and sealed slabs in a coded cache.
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_receiver.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/bf16.h"
#include "base/random.h"
#include "codec/codec.h"
#include "cpu/streaming_copy.h"

namespace kvlane {
namespace {

constexpr KvShape kReceivedShape{.layers = 2, .kv_heads = 4, .head_dim = 64};
constexpr int kBlockBytes = 2 * 2 * 4 * 64 * 64 * 2;
constexpr int kShort = 150;
constexpr int kLong = static_cast<int>(kStreamingBytes) / kBlockBytes * kBlockTokens + 22;

// Bell-shaped values: every codec has something to do.
Bytes plane_of(const PlaneShape& shape, std::uint32_t name) {
  Bytes plane(shape.bytes());
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    const PhiloxCounter dice = philox4x32(name, {static_cast<std::uint32_t>(i), 0, 0, 0});
    double sum = -2;
    for (const std::uint32_t die : dice) sum += die * 0x1p-32;
    const std::uint16_t bits = to_bf16(static_cast<float>(sum)).bits;
    std::memcpy(&plane[2 * i], &bits, sizeof bits);
  }
  return plane;
}

class ReceivedRows : public testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  ReceivedRows()
      : pool_(std::move(*BlockPool::create(kReceivedShape,
                                           blocks_for(tokens()) * kReceivedShape.block_bytes()))),
        table_(pool_) {
    EXPECT_TRUE(table_.grow(tokens()).ok());
    for (int block = 0; block < table_.blocks(); ++block) {
      std::memset(pool_.block(table_.id(block)), 0xEE, kReceivedShape.block_bytes());
    }
  }
  static int tokens() { return std::get<0>(GetParam()); }
  static int rows_of(int block) { return std::min(kBlockTokens, tokens() - block * kBlockTokens); }
  static std::uint32_t name_of(int block, int layer, int part) {
    return static_cast<std::uint32_t>((block * kReceivedShape.layers + layer) * 2 + part);
  }

  Status send(KvReceiver& receiver, int block, int layer) {
    const Codec& codec = **find_codec(std::get<1>(GetParam()));
    FrameHeader header;
    header.format = "bf16";
    header.codec = codec.name();
    header.layer = layer;
    header.kv_heads = kReceivedShape.kv_heads;
    header.head_dim = kReceivedShape.head_dim;
    header.position = std::int64_t{block} * kBlockTokens;
    header.tokens = rows_of(block);
    const PlaneShape shape = plane_shape(kReceivedShape, header.tokens);
    std::array<Bytes, 2> coded;
    for (int part = 0; part < 2; ++part) {
      coded[part].resize(codec.bound(shape));
      coded[part].resize(
          codec.encode(shape, plane_of(shape, name_of(block, layer, part)), nullptr, coded[part]));
    }
    header.k_bytes = static_cast<std::uint32_t>(coded[0].size());
    header.v_bytes = static_cast<std::uint32_t>(coded[1].size());
    return receiver.on_slab({header, coded[0], coded[1]});
  }

  // The rows of all heads as they lie in the pages, and that nothing was written behind them.
  void expect_rows(int block, int layer) const {
    const PlaneShape shape = plane_shape(kReceivedShape, rows_of(block));
    const std::size_t head_bytes = shape.bytes() / kReceivedShape.kv_heads;
    const std::size_t room = kReceivedShape.page_plane_elements() * 2;
    for (int part = 0; part < 2; ++part) {
      const Bytes plane = plane_of(shape, name_of(block, layer, part));
      for (int head = 0; head < kReceivedShape.kv_heads; ++head) {
        const auto* const page =
            reinterpret_cast<const std::byte*>(pool_.page(table_.id(block), layer, head)) +
            part * room;
        ASSERT_EQ(std::memcmp(page, plane.data() + head * head_bytes, head_bytes), 0)
            << "block " << block << ", layer " << layer << ", head " << head << ", part " << part;
        ASSERT_TRUE(std::all_of(page + head_bytes, page + room,
                                [](std::byte b) { return b == std::byte{0xEE}; }))
            << "behind block " << block << ", layer " << layer << ", head " << head;
      }
    }
  }

  BlockPool pool_;
  BlockTable table_;
};

TEST_P(ReceivedRows, AreThoseThatWereSentAndNothingElseIsTouched) {
  SlabLane lane;
  KvReceiver receiver(table_, lane, tokens(), std::nullopt, best_isa(), nullptr,
                      [](const Result<ReceivedKv>&) {});
  receiver.grant();
  ASSERT_TRUE(receiver.on_begin({tokens(), kReceivedShape.layers, "bf16", "none"}).ok());
  for (int layer = 0; layer < kReceivedShape.layers; ++layer) {
    for (int block = 0; block < table_.blocks(); ++block) {
      const Status status = send(receiver, block, layer);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  for (int layer = 0; layer < kReceivedShape.layers; ++layer) {
    for (int block = 0; block < table_.blocks(); ++block) expect_rows(block, layer);
  }
}

INSTANTIATE_TEST_SUITE_P(LengthsAndCodecs, ReceivedRows,
                         testing::Combine(testing::Values(kShort, kLong),
                                          testing::Values("none", "splitzip", "splitzip:channel")));

// A coded table of three blocks, of which the last one is open.
class ReceivedSealed : public testing::Test {
 protected:
  static constexpr int kTokens = 2 * kBlockTokens + 9;
  static constexpr PromptDigest kPrompt{std::byte{7}};

  void SetUp() override {
    format_ = *make_kv_format("int8", {.shape = kReceivedShape});
    slab_.resize(format_->slab_bytes());
    const std::vector<std::uint16_t> rows(kReceivedShape.slab_bytes() / 2, to_bf16(1.5F).bits);
    ASSERT_TRUE(format_->seal({0, 0}, rows.data(), slab_.data()).ok());
    packed_.resize(format_->used_bytes({0, 0}, slab_.data()));
    format_->pack({0, 0}, slab_.data(), packed_.data());
    ASSERT_TRUE(table_.grow(kTokens).ok());
    ASSERT_TRUE(table_.open_arriving_rows(kTokens).ok());
    receiver_ = std::make_unique<KvReceiver>(table_, lane_, kTokens, kPrompt, Isa::kScalar, format_,
                                             [](const Result<ReceivedKv>&) {});
    receiver_->grant();
    ASSERT_TRUE(receiver_->on_begin(begin(kPrompt)).ok());
  }

  TransferBegin begin(const std::optional<PromptDigest>& prompt) const {
    return {kTokens, kReceivedShape.layers, format_->name(), "none", prompt};
  }

  FrameHeader header(int block) const {
    FrameHeader header;
    header.format = format_->slab_name();
    header.sealed = true;
    header.kv_heads = kReceivedShape.kv_heads;
    header.head_dim = kReceivedShape.head_dim;
    header.position = std::int64_t{block} * kBlockTokens;
    header.tokens = std::min(kBlockTokens, kTokens - block * kBlockTokens);
    return header;
  }

  std::shared_ptr<const KvFormat> format_;
  Bytes slab_, packed_;
  BlockPool sealed_ = std::move(*BlockPool::create_sealed(
      kReceivedShape, (*make_kv_format("int8", {.shape = kReceivedShape}))->slab_sizes(),
      std::size_t{1} << 20));
  BlockPool rows_ = std::move(*BlockPool::create(kReceivedShape, 3 * kReceivedShape.block_bytes()));
  BlockTable table_{sealed_, rows_, {}};
  SlabLane lane_;
  std::unique_ptr<KvReceiver> receiver_;
};

TEST_F(ReceivedSealed, SlabsAreThoseThatWereSealed) {
  std::memset(table_.sealed(1, 0), 0xEE, format_->slab_bytes());
  ASSERT_TRUE(receiver_->on_slab({header(1), packed_, {}}).ok());
  EXPECT_EQ(std::memcmp(table_.sealed(1, 0), slab_.data(), slab_.size()), 0);
  EXPECT_EQ(rows_.blocks_free(), 2);  // only the open block has rows
}

TEST_F(ReceivedSealed, AnotherPromptOfThatLengthIsRefused) {
  EXPECT_THAT(receiver_->on_begin(begin(PromptDigest{std::byte{8}})).message(),
              testing::HasSubstr("another prompt"));
  EXPECT_THAT(receiver_->on_begin(begin(std::nullopt)).message(),
              testing::HasSubstr("does not say of which prompt"));
  EXPECT_TRUE(receiver_->on_begin(begin(kPrompt)).ok());
}

TEST_F(ReceivedSealed, WhatIsNotRightIsRefused) {
  EXPECT_EQ(receiver_->on_slab({header(1), ByteView(packed_).first(packed_.size() - 1), {}}).code(),
            Code::kCorrupt);
  FrameHeader other_tables = header(1);
  other_tables.tables = 7;
  const Status tables = receiver_->on_slab({other_tables, packed_, {}});
  EXPECT_EQ(tables.code(), Code::kInvalidArgument);
  EXPECT_NE(tables.message().find("--kv-tables"), std::string::npos) << tables.message();
  FrameHeader before_rope = header(1);
  before_rope.rope_applied = false;
  EXPECT_EQ(receiver_->on_slab({before_rope, packed_, {}}).code(), Code::kCorrupt);
  // The open block comes as rows, a complete one sealed.
  EXPECT_EQ(receiver_->on_slab({header(2), packed_, {}}).code(), Code::kCorrupt);
  FrameHeader rows = header(0);
  rows.sealed = false;
  rows.format = "bf16";
  EXPECT_EQ(receiver_->on_slab({rows, packed_, packed_}).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace kvlane
