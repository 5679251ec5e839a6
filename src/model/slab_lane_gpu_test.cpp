// Slabs to a GPU's memory and from there, through pinned buffers and through its codecs: the CPU's
// bytes, on streams of their own.
// SPDX-License-Identifier: Apache-2.0
#include "model/slab_lane.h"

#include <array>
#include <cstring>

#include "base/bf16.h"
#include "base/random.h"
#include "gpu/gpu_fixture.h"
#include "model/gpu_accelerator.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using gpu_fixture::take;

const KvShape kShape{3, 4, 64, ElementType::kBf16};
constexpr int kBlocks = 5;

// Around 1 with a few outliers, so that codecs have escapes.
Bytes slab_of(std::uint32_t seed) {
  Bytes slab(kShape.slab_bytes());
  for (std::size_t i = 0; i < slab.size() / 2; ++i) {
    const auto dice = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    const float scale = dice[1] % 50 == 0 ? 1e9F : 1.0F;
    const bf16 value = to_bf16(scale * (static_cast<float>(dice[0]) * 0x1p-31F - 1));
    std::memcpy(slab.data() + 2 * i, &value, 2);
  }
  return slab;
}

class SlabLaneGpuTest : public gpu_fixture::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto device = gpu_accelerator(kDevice);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = std::move(*device);
    const std::size_t bytes = kBlocks * kShape.block_bytes();
    memory_ = take(device_->allocate(bytes));
    pool_.emplace(take(BlockPool::over(kShape, {memory_.get(), bytes}, take(device_->copies()))));
    for (int i = 0; i < kBlocks; ++i) blocks_.push_back(take(pool_->allocate()));
  }

  // What a lane of its own finds.
  void expect_slabs(int layer, const std::vector<Bytes>& slabs) {
    SlabLane lane = take(SlabLane::open(*device_, kShape, 1));
    check(lane.begin(*pool_, blocks_, layer, nullptr));
    for (int i = 0; i < kBlocks; ++i) {
      const std::byte* const slab = take(lane.next());
      EXPECT_EQ(std::memcmp(slab, slabs[i].data(), slabs[i].size()), 0) << layer << " " << i;
    }
  }

  std::unique_ptr<Accelerator> device_;
  Accelerator::Memory memory_;
  std::optional<BlockPool> pool_;
  std::vector<BlockId> blocks_;
};

TEST_F(SlabLaneGpuTest, SlabsGoAndComeBack) {
  SlabLane lane = take(SlabLane::open(*device_, kShape, 1, 0, 2 * kBlocks));
  std::vector<std::vector<Bytes>> slabs(kShape.layers);
  for (int layer = 0; layer < kShape.layers; ++layer) {
    // The rooms of the layer before are still being read.
    const int first = layer % 2 * kBlocks;
    for (int i = 0; i < kBlocks; ++i) {
      slabs[layer].push_back(slab_of(100 * layer + i));
      std::memcpy(lane.room(*pool_, blocks_[i], layer, kBlockTokens, first + i),
                  slabs[layer][i].data(), kShape.slab_bytes());
    }
    check(lane.finish());
    for (int i = 0; i < kBlocks; ++i) check(lane.give(*pool_, blocks_[i], layer, first + i));
  }
  check(lane.finish());
  for (int layer = 0; layer < kShape.layers; ++layer) expect_slabs(layer, slabs[layer]);
  check(lane.begin(*pool_, blocks_[3], 0, kShape.layers));
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const std::byte* const slab = take(lane.next());
    EXPECT_EQ(std::memcmp(slab, slabs[layer][3].data(), kShape.slab_bytes()), 0) << layer;
  }
}

TEST_F(SlabLaneGpuTest, CodecsHaveTheBytesOfTheCpu) {
  SlabLane lane = take(SlabLane::open(*device_, kShape, kBlocks));
  SlabCoder& coder = *lane.coder();
  Codebook book;
  for (int i = 0; i < 16; ++i) book.exponents[i] = static_cast<std::uint8_t>(112 + i);
  const PlaneShape shape = plane_shape(kShape, kBlockTokens);
  for (const char* const name : {"splitzip", "splitzip:channel"}) {
    SCOPED_TRACE(name);
    const Codec& codec = *take(find_codec(name));
    std::vector<Bytes> slabs;
    std::vector<DeviceSlab> on_device;
    for (int i = 0; i < kBlocks; ++i) {
      slabs.push_back(slab_of(i));
      std::memcpy(lane.room(*pool_, blocks_[i], 0), slabs[i].data(), kShape.slab_bytes());
      check(lane.store(*pool_, blocks_[i], 0));
      on_device.push_back({pool_->slab_memory(blocks_[i], 0), kBlockTokens, {}});
      // Each has its own.
      on_device[i].books = {i % 2 == 0 ? nullptr : &book, i == 2 ? &book : nullptr};
    }
    const auto coded = take(coder.encode(codec, on_device, nullptr));
    std::vector<std::array<Bytes, 2>> bodies(kBlocks);
    std::vector<ComingSlab> coming;
    for (int i = 0; i < kBlocks; ++i) {
      for (int part = 0; part < 2; ++part) {
        const std::size_t page = kShape.page_bytes();
        const PlaneView values{slabs[i].data() + part * page / 2, page};
        Bytes& body = bodies[i][part];
        body.resize(codec.bound(shape));
        body.resize(codec.encode(shape, values, on_device[i].books[part], body));
        const ByteView there = part == 0 ? coded[i].k : coded[i].v;
        EXPECT_EQ(Bytes(there.begin(), there.end()), body) << i << " " << part;
      }
      coming.push_back(
          {{bodies[i][0], bodies[i][1]}, kBlockTokens, pool_->slab_memory(blocks_[i], 1)});
    }
    std::vector<Status> verdicts(kBlocks);
    check(coder.decode(codec, coming, verdicts));
    for (const Status& verdict : verdicts) EXPECT_TRUE(verdict.ok()) << verdict.message();
    expect_slabs(1, slabs);
    // One that is cut is refused, and the others are not.
    coming[1].coded.k = coming[1].coded.k.first(coming[1].coded.k.size() - 1);
    check(coder.decode(codec, coming, verdicts));
    for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(verdicts[i].ok(), i != 1) << i;
  }
}

}  // namespace
}  // namespace kvlane
