// The kernel of checksums, against known sums and the same device code on emulated threads. Skipped
// where no GPU is. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/xxh3_gpu.h"

#include <gtest/gtest.h>

#include "gpu/device_list.h"
#include "gpu/gpu_fixture.h"
#include "gpu/xxh3_fixture.h"

namespace kvlane::gpu {
namespace {

using namespace xxh3_fixture;
using gpu_fixture::check;
using gpu_fixture::DeviceBytes;

class Xxh3GpuTest : public gpu_fixture::GpuTest {
 protected:
  // Of pieces of content(), all in one launch.
  std::vector<std::uint64_t> sums_of(const std::vector<std::size_t>& lengths,
                                     DeviceBytes::Around around) {
    const DeviceBytes sums(stream(), Bytes(lengths.size() * sizeof(std::uint64_t)), 0, around);
    std::vector<DeviceBytes> pieces;
    std::vector<Xxh3Task> tasks;
    for (const std::size_t bytes : lengths) {
      pieces.emplace_back(stream(), content(bytes), 0, around);
      tasks.push_back({pieces.back().data(), bytes,
                       reinterpret_cast<std::uint64_t*>(sums.data()) + tasks.size()});
    }
    auto list = take(DeviceList<Xxh3Task>::allocate(kDevice, tasks.size()));
    check(list.assign(stream(), tasks));
    check(xxh3_on_gpu(list.on_device(), tasks.size(), stream()));
    check(stream().synchronize());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(pieces[i].read(), content(lengths[i]));
    }
    return gpu_fixture::values_of<std::uint64_t>(sums.read());
  }
};

TEST_F(Xxh3GpuTest, SmallLengths) {
  const std::vector<std::size_t> lengths(std::begin(kLengths), std::end(kLengths));
  const auto sums = sums_of(lengths, DeviceBytes::Around::kNothing);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(sums[i], sum_on_emulated_threads(content(lengths[i]), 64, 1)) << lengths[i];
  }
}

TEST_F(Xxh3GpuTest, KnownSums) {
  std::vector<std::size_t> lengths;
  for (int times = 0; times < 40; ++times) {
    for (const Known& known : kKnown) lengths.push_back(known.bytes);
  }
  const auto sums = sums_of(lengths, DeviceBytes::Around::kPoison);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], kKnown[i % std::size(kKnown)].sum) << lengths[i];
  }
}

}  // namespace
}  // namespace kvlane::gpu
