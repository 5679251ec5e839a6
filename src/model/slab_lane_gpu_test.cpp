// Slabs to a GPU's memory and from there, through pinned buffers and through its codecs: the CPU's
// bytes, on streams of their own.
// SPDX-License-Identifier: Apache-2.0
#include "model/slab_lane.h"

#include <array>
#include <cstring>

#include "base/bf16.h"
#include "gpu/gpu_fixture.h"
#include "model/gpu_accelerator.h"
#include "model/slab_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using slab_fixture::slab_of;

const KvShape kGpuLaneShape{3, 4, 64, ElementType::kBf16};
constexpr int kGpuLaneBlocks = 5;

class SlabLaneGpuTest : public gpu_fixture::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto device = gpu_accelerator(kDevice);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = std::move(*device);
    const std::size_t bytes = kGpuLaneBlocks * kGpuLaneShape.block_bytes();
    memory_ = take(device_->allocate(bytes));
    pool_.emplace(
        take(BlockPool::over(kGpuLaneShape, {memory_.get(), bytes}, take(device_->copies()))));
    for (int i = 0; i < kGpuLaneBlocks; ++i) blocks_.push_back(take(pool_->allocate()));
  }

  // What a lane of its own finds.
  void expect_slabs(int layer, const std::vector<Bytes>& slabs) {
    SlabLane lane = take(SlabLane::open(*device_, kGpuLaneShape, 1));
    check(lane.begin(*pool_, blocks_, layer, nullptr));
    for (int i = 0; i < kGpuLaneBlocks; ++i) {
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
  SlabLane lane = take(SlabLane::open(*device_, kGpuLaneShape, 1, 0, 2 * kGpuLaneBlocks));
  std::vector<std::vector<Bytes>> slabs(kGpuLaneShape.layers);
  for (int layer = 0; layer < kGpuLaneShape.layers; ++layer) {
    // The rooms of the layer before are still being read.
    const int first = layer % 2 * kGpuLaneBlocks;
    for (int i = 0; i < kGpuLaneBlocks; ++i) {
      slabs[layer].push_back(slab_of(kGpuLaneShape, 100 * layer + i));
      std::memcpy(lane.room(*pool_, blocks_[i], layer, kBlockTokens, first + i),
                  slabs[layer][i].data(), kGpuLaneShape.slab_bytes());
    }
    check(lane.finish());
    for (int i = 0; i < kGpuLaneBlocks; ++i) check(lane.give(*pool_, blocks_[i], layer, first + i));
  }
  check(lane.finish());
  for (int layer = 0; layer < kGpuLaneShape.layers; ++layer) expect_slabs(layer, slabs[layer]);
  check(lane.begin(*pool_, blocks_[3], 0, kGpuLaneShape.layers));
  for (int layer = 0; layer < kGpuLaneShape.layers; ++layer) {
    const std::byte* const slab = take(lane.next());
    EXPECT_EQ(std::memcmp(slab, slabs[layer][3].data(), kGpuLaneShape.slab_bytes()), 0) << layer;
  }
}

TEST_F(SlabLaneGpuTest, CodecsHaveTheBytesOfTheCpu) {
  SlabLane lane = take(SlabLane::open(*device_, kGpuLaneShape, kGpuLaneBlocks));
  SlabCoder& coder = *lane.coder();
  Codebook book;
  for (int i = 0; i < 16; ++i) book.exponents[i] = static_cast<std::uint8_t>(112 + i);
  const PlaneShape shape = plane_shape(kGpuLaneShape, kBlockTokens);
  for (const char* const name : {"splitzip", "splitzip:channel"}) {
    SCOPED_TRACE(name);
    const Codec& codec = *take(find_codec(name));
    std::vector<Bytes> slabs;
    std::vector<DeviceSlab> on_device;
    for (int i = 0; i < kGpuLaneBlocks; ++i) {
      slabs.push_back(slab_of(kGpuLaneShape, i));
      std::memcpy(lane.room(*pool_, blocks_[i], 0), slabs[i].data(), kGpuLaneShape.slab_bytes());
      check(lane.store(*pool_, blocks_[i], 0));
      on_device.push_back({pool_->slab_memory(blocks_[i], 0), kBlockTokens, {}});
      // Each has its own.
      on_device[i].books = {i % 2 == 0 ? nullptr : &book, i == 2 ? &book : nullptr};
    }
    const auto coded = take(coder.encode(codec, on_device, nullptr));
    std::vector<std::array<Bytes, 2>> bodies(kGpuLaneBlocks);
    std::vector<ComingSlab> coming;
    for (int i = 0; i < kGpuLaneBlocks; ++i) {
      for (int part = 0; part < 2; ++part) {
        const std::size_t page = kGpuLaneShape.page_bytes();
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
    std::vector<Status> verdicts(kGpuLaneBlocks);
    check(coder.decode(codec, coming, verdicts));
    for (const Status& verdict : verdicts) EXPECT_TRUE(verdict.ok()) << verdict.message();
    expect_slabs(1, slabs);
    // One that is cut is refused, and the others are not.
    coming[1].coded.k = coming[1].coded.k.first(coming[1].coded.k.size() - 1);
    check(coder.decode(codec, coming, verdicts));
    for (int i = 0; i < kGpuLaneBlocks; ++i) EXPECT_EQ(verdicts[i].ok(), i != 1) << i;
  }
}

}  // namespace
}  // namespace kvlane
