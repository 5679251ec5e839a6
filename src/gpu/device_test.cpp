// Devices: what is said where there is none, and what the driver says of those that there are.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include <gtest/gtest.h>

#include "gpu/device_list.h"

namespace kvlane::gpu {
namespace {

TEST(Devices, AreFoundOrTheReasonIsSaid) {
  const Result<std::vector<Device>> found = devices();
  if (!found.ok()) {
    EXPECT_TRUE(found.status().code() == Code::kUnsupported ||
                found.status().code() == Code::kUnavailable)
        << found.status().message();
    EXPECT_NE(found.status().message().find("CUDA"), std::string::npos);
    return;
  }
  ASSERT_FALSE(found->empty());
  for (std::size_t i = 0; i < found->size(); ++i) {
    const Device& device = (*found)[i];
    EXPECT_EQ(device.index, static_cast<int>(i));
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.major, 5);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GT(device.memory_bytes, std::size_t{1} << 30);
    EXPECT_GE(device.driver, device.runtime / 1000 * 1000);
    const Result<std::size_t> free = free_memory(device.index);
    ASSERT_TRUE(free.ok()) << free.status().message();
    EXPECT_LE(*free, device.memory_bytes);
  }
}

// The reason is the same for everything.
TEST(Devices, WithoutOneNothingCanBeMade) {
  const Result<std::vector<Device>> found = devices();
  if (found.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(Stream::create(0).status().message(), found.status().message());
  EXPECT_EQ(Event::create(0).status().message(), found.status().message());
  EXPECT_EQ(DeviceBuffer::allocate(0, 16).status().message(), found.status().message());
  EXPECT_EQ(PinnedBuffer::allocate(0, 16).status().message(), found.status().message());
  EXPECT_EQ(free_memory(0).status().message(), found.status().message());
  EXPECT_EQ(DeviceList<int>::allocate(0, 16).status().message(), found.status().message());
}

}  // namespace
}  // namespace kvlane::gpu
