// Slabs of a device through buffers of the host: the right ones, in order, not before they are
// there, and errors where the device refuses.
// SPDX-License-Identifier: Apache-2.0
#include "model/slab_lane.h"

#include <gtest/gtest.h>

#include "base/test_results.h"
#include "model/emulated_accelerator.h"

namespace kvlane {
namespace {

const KvShape kLaneShape{2, 3, 16, ElementType::kBf16};
constexpr int kLaneBlocks = 5;
constexpr int kLayer = 1;

// A pool on a device that writes each slab's number into it, later.
class SlabLaneTest : public testing::Test {
 protected:
  SlabLaneTest() {
    for (int i = 0; i < kLaneBlocks; ++i) {
      blocks_.push_back(*pool_.allocate());
      numbers_.emplace_back(kLaneShape.slab_bytes(), std::byte(i + 1));
    }
  }

  // In the device's line, which nobody waits for.
  std::shared_ptr<const DeviceMark> write_all() {
    for (int i = 0; i < kLaneBlocks; ++i) {
      EXPECT_TRUE(device_.copy(slab(i), numbers_[i].data(), kLaneShape.slab_bytes()).ok());
    }
    return take(device_.mark());
  }
  std::byte* slab(int i) const {
    return reinterpret_cast<std::byte*>(pool_.slab(blocks_[i], kLayer));
  }
  Bytes bytes_of(const std::byte* slab) const { return {slab, slab + kLaneShape.slab_bytes()}; }

  EmulatedAccelerator device_;
  const std::size_t bytes_ = kLaneBlocks * kLaneShape.block_bytes();
  const Accelerator::Memory memory_ = take(device_.allocate(bytes_));
  BlockPool pool_ =
      take(BlockPool::over(kLaneShape, {memory_.get(), bytes_}, take(device_.copies())));
  SlabLane lane_ = take(SlabLane::open(device_, kLaneShape, 1));
  std::vector<BlockId> blocks_;
  std::vector<Bytes> numbers_;
};

TEST_F(SlabLaneTest, GivesSlabsInOrderOnceTheyAreWritten) {
  const auto written = write_all();
  ASSERT_TRUE(lane_.begin(pool_, blocks_, kLayer, written.get()).ok());
  for (int i = 0; i < kLaneBlocks; ++i) EXPECT_EQ(bytes_of(take(lane_.next())), numbers_[i]) << i;

  // Left in the middle, the next run is not confused.
  ASSERT_TRUE(lane_.begin(pool_, blocks_, kLayer, nullptr).ok());
  EXPECT_EQ(bytes_of(take(lane_.next())), numbers_[0]);
  const std::vector<BlockId> others{blocks_[3], blocks_[1]};
  ASSERT_TRUE(lane_.begin(pool_, others, kLayer, nullptr).ok());
  EXPECT_EQ(bytes_of(take(lane_.next())), numbers_[3]);
  EXPECT_EQ(bytes_of(take(lane_.next())), numbers_[1]);
}

TEST_F(SlabLaneTest, ASlabThatIsReadBeforeItsMarkIsNotThere) {
  const auto written = write_all();
  ASSERT_TRUE(lane_.begin(pool_, blocks_, kLayer, nullptr).ok());
  EXPECT_NE(bytes_of(take(lane_.next())), numbers_[0]);
}

TEST_F(SlabLaneTest, GivesTheLayersOfABlock) {
  for (int layer = 0; layer < kLaneShape.layers; ++layer) {
    std::memset(lane_.room(pool_, blocks_[1], layer), 40 + layer, kLaneShape.slab_bytes());
    ASSERT_TRUE(lane_.store(pool_, blocks_[1], layer).ok());
  }
  ASSERT_TRUE(lane_.begin(pool_, blocks_[1], 0, kLaneShape.layers).ok());
  for (int layer = 0; layer < kLaneShape.layers; ++layer) {
    EXPECT_EQ(bytes_of(take(lane_.next())), Bytes(kLaneShape.slab_bytes(), std::byte(40 + layer)));
  }
}

// Nothing of what was given is in its place before the end, and all of it then.
TEST_F(SlabLaneTest, GivesFromAsManyRoomsAsThereAre) {
  SlabLane lane = take(SlabLane::open(device_, kLaneShape, 1, 0, kLaneBlocks));
  for (int i = 0; i < kLaneBlocks; ++i) {
    std::memcpy(lane.room(pool_, blocks_[i], kLayer, kBlockTokens, i), numbers_[i].data(),
                kLaneShape.slab_bytes());
    ASSERT_TRUE(lane.give(pool_, blocks_[i], kLayer, i).ok());
  }
  ASSERT_TRUE(lane_.begin(pool_, blocks_, kLayer, nullptr).ok());
  EXPECT_NE(bytes_of(take(lane_.next())), numbers_[0]);
  ASSERT_TRUE(lane.finish().ok());
  ASSERT_TRUE(lane_.begin(pool_, blocks_, kLayer, nullptr).ok());
  for (int i = 0; i < kLaneBlocks; ++i) EXPECT_EQ(bytes_of(take(lane_.next())), numbers_[i]) << i;
}

TEST_F(SlabLaneTest, StoresRowsAndZeroesTheOthers) {
  std::memcpy(lane_.room(pool_, blocks_[2], kLayer, kBlockTokens), numbers_[2].data(),
              kLaneShape.slab_bytes());
  ASSERT_TRUE(lane_.store(pool_, blocks_[2], kLayer).ok());
  lane_.room(pool_, blocks_[4], kLayer, 3)[0] = std::byte{7};
  ASSERT_TRUE(lane_.store(pool_, blocks_[4], kLayer).ok());
  const std::vector<BlockId> both{blocks_[2], blocks_[4]};
  ASSERT_TRUE(lane_.begin(pool_, both, kLayer, nullptr).ok());
  EXPECT_EQ(bytes_of(take(lane_.next())), numbers_[2]);
  Bytes rows(kLaneShape.slab_bytes());
  rows[0] = std::byte{7};
  EXPECT_EQ(bytes_of(take(lane_.next())), rows);
}

TEST_F(SlabLaneTest, AnyCallOfTheDeviceMayFail) {
  const auto written = write_all();
  const auto everything = [&]() -> Status {
    KVLANE_ASSIGN(SlabLane lane, SlabLane::open(device_, kLaneShape, 1));
    KVLANE_TRY(lane.begin(pool_, std::span(blocks_).first(2), kLayer, written.get()));
    for (int i = 0; i < 2; ++i) {
      KVLANE_ASSIGN(const std::byte* const slab, lane.next());
      EXPECT_EQ(bytes_of(slab), numbers_[i]);
    }
    std::memcpy(lane.room(pool_, blocks_[0], kLayer, kBlockTokens), numbers_[0].data(),
                kLaneShape.slab_bytes());
    return lane.store(pool_, blocks_[0], kLayer);
  };
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    device_.fail_call(failed + 1);
    const Status status = everything();
    done = device_.calls() <= failed;
    EXPECT_EQ(status.code(), done ? Code::kOk : Code::kInternal) << failed;
  }
  EXPECT_EQ(failed, 1 + 5 + 5 + 2);  // open, read two, store, and nothing failed
}

}  // namespace
}  // namespace kvlane
