// Streams, events, memory and lists of a GPU. Skipped where there is none.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>

#include "gpu/device.h"
#include "gpu/device_list.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::gpu {
namespace {

using gpu_fixture::check;

class DeviceGpuTest : public gpu_fixture::GpuTest {};

Bytes numbered(std::size_t bytes, unsigned seed) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = std::byte((i * 167 + seed) >> 3 & 0xFF);
  return result;
}

TEST_F(DeviceGpuTest, CopiesAnySizeBetweenAnyPlaces) {
  for (const std::size_t bytes : {0, 1, 15, 16, 4097, 1 << 20, (1 << 24) + 3}) {
    for (const std::size_t shift : {0, 1, 8}) {
      const Bytes sent = numbered(bytes, static_cast<unsigned>(bytes));
      const PinnedBuffer host = take(PinnedBuffer::allocate(kDevice, bytes + shift));
      const PinnedBuffer back = take(PinnedBuffer::allocate(kDevice, bytes));
      const DeviceBuffer first = take(DeviceBuffer::allocate(kDevice, bytes + shift));
      const DeviceBuffer second = take(DeviceBuffer::allocate(kDevice, bytes));
      std::copy(sent.begin(), sent.end(), host.span().subspan(shift).begin());
      check(copy(stream(), first.data() + shift, host.data() + shift, bytes));
      check(copy(stream(), second.data(), first.data() + shift, bytes));
      check(copy(stream(), back.data(), second.data(), bytes));
      check(stream().synchronize());
      ASSERT_EQ(Bytes(back.span().begin(), back.span().end()), sent);
    }
  }
}

TEST_F(DeviceGpuTest, Fills) {
  const DeviceBuffer buffer = take(DeviceBuffer::allocate(kDevice, 1001));
  Bytes back(1001);
  check(fill(stream(), buffer.data(), std::byte{0x5A}, 1001));
  check(fill(stream(), buffer.data() + 1000, std::byte{7}, 1));
  check(copy(stream(), back.data(), buffer.data(), back.size()));
  check(stream().synchronize());
  Bytes expected(1001, std::byte{0x5A});
  expected.back() = std::byte{7};
  EXPECT_EQ(back, expected);
}

TEST_F(DeviceGpuTest, SaysWhatCannotBeHad) {
  const Status memory = DeviceBuffer::allocate(kDevice, std::size_t{1} << 60).status();
  EXPECT_EQ(memory.code(), Code::kExhausted);
  EXPECT_NE(memory.message().find(std::to_string(std::size_t{1} << 60)), std::string::npos);
  EXPECT_EQ(Stream::create(1 << 20).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(Stream::create(-1).ok());
  // None of it does harm to what comes after it.
  const DeviceBuffer buffer = take(DeviceBuffer::allocate(kDevice, 64));
  check(fill(stream(), buffer.data(), std::byte{1}, 64));
  check(stream().synchronize());
}

TEST_F(DeviceGpuTest, EventsMeasureAndStreamsWaitForThem) {
  constexpr std::size_t kBytes = std::size_t{1} << 28;
  const Stream other = take(Stream::create(kDevice));
  const DeviceBuffer buffer = take(DeviceBuffer::allocate(kDevice, kBytes));
  Event begin = take(Event::create(kDevice));
  Event end = take(Event::create(kDevice));
  check(begin.record(stream()));
  for (int i = 0; i < 8; ++i) check(fill(stream(), buffer.data(), std::byte(i), kBytes));
  check(end.record(stream()));
  check(other.wait(end));
  Bytes last(1);
  check(copy(other, last.data(), buffer.data() + kBytes - 1, 1));
  check(other.synchronize());
  EXPECT_EQ(last[0], std::byte{7});
  EXPECT_GT(take(end.seconds_since(begin)), 0.0);
}

TEST_F(DeviceGpuTest, ListsAreFilledAgainWhileTheyAreUsed) {
  constexpr int kRounds = 100;
  DeviceList<int> list = take(DeviceList<int>::allocate(kDevice, 1000));
  const DeviceBuffer all = take(DeviceBuffer::allocate(kDevice, kRounds * 1000 * sizeof(int)));
  std::vector<int> items(1000);
  for (int round = 0; round < kRounds; ++round) {
    std::iota(items.begin(), items.end(), 1000 * round);
    check(list.assign(stream(), items));
    check(copy(stream(), all.data() + 1000 * sizeof(int) * round,
               reinterpret_cast<const std::byte*>(list.on_device()), 1000 * sizeof(int)));
  }
  std::vector<int> back(std::size_t{kRounds} * 1000), expected(back.size());
  check(copy(stream(), reinterpret_cast<std::byte*>(back.data()), all.data(),
             back.size() * sizeof(int)));
  check(stream().synchronize());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(back, expected);
  items.resize(1001);
  EXPECT_EQ(list.assign(stream(), items).code(), Code::kInvalidArgument);
  check(list.assign(stream(), {}));
}

}  // namespace
}  // namespace kvlane::gpu
