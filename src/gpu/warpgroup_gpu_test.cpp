// Products of warpgroups on a GPU, against plain loops. Skipped where there is none, or one without
// them; there warpgroup_device_test.cpp runs the same device code on emulated threads.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/warpgroup_gpu.h"

#include <gtest/gtest.h>

#include "gpu/gpu_fixture.h"
#include "gpu/warpgroup_fixture.h"

namespace kvlane::gpu {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;
using warpgroup_fixture::kByteColumns;
using warpgroup_fixture::kRows;
using warpgroup_fixture::Rows;

class WarpgroupGpuTest : public gpu_fixture::GpuTest {
 protected:
  // Rows on the device, of which the results are poison but for those that are added to.
  struct OnDevice {
    DeviceBytes bytes_a, bytes_b, bytes_d, halves_a, halves_b, halves_d;
    WarpgroupTask task() const {
      return {bytes_a.data(),  bytes_b.data(),  reinterpret_cast<std::int32_t*>(bytes_d.data()),
              halves_a.data(), halves_b.data(), reinterpret_cast<float*>(halves_d.data())};
    }
  };
  OnDevice on_device(const Rows& rows) {
    const auto of = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, DeviceBytes::Around::kNothing);
    };
    const Bytes poison(sizeof(std::int32_t) * kRows * kByteColumns, DeviceBytes::kPoison);
    return {of(view(rows.bytes_a)),  of(view(rows.bytes_b)),  of(poison),
            of(view(rows.halves_a)), of(view(rows.halves_b)), of(view(rows.halves_d))};
  }
};

TEST_F(WarpgroupGpuTest, SmallMultipliesRows) {
  if (!take(has_warpgroups(kDevice))) GTEST_SKIP() << "this device has no products of warpgroups";
  for (const int columns : {72, 136}) {
    const Rows rows(columns);
    const OnDevice there = on_device(rows);
    check(multiply_rows_on_gpu(there.task(), columns, stream()));
    check(stream().synchronize());
    EXPECT_TRUE(rows.are_right(values_of<std::int32_t>(there.bytes_d.read()),
                               values_of<float>(there.halves_d.read())))
        << columns << " columns";
  }
}

TEST_F(WarpgroupGpuTest, WhatThereIsNoProductFor) {
  const Rows rows(72);
  const OnDevice there = on_device(rows);
  const bool has = take(has_warpgroups(kDevice));
  EXPECT_EQ(multiply_rows_on_gpu(there.task(), 80, stream()).code(),
            has ? Code::kInvalidArgument : Code::kUnsupported);
}

}  // namespace
}  // namespace kvlane::gpu
