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
using gpu_fixture::take;
using gpu_fixture::values_of;
using gpu_fixture::view;
using warpgroup_fixture::kByteColumns;
using warpgroup_fixture::kRows;
using warpgroup_fixture::Rows;

class WarpgroupGpuTest : public gpu_fixture::GpuTest {
 protected:
  DeviceBytes on_device(ByteView content) {
    return DeviceBytes(stream(), content, 0, DeviceBytes::Around::kNothing);
  }
};

TEST_F(WarpgroupGpuTest, SmallMultipliesRows) {
  if (!take(has_warpgroups(kDevice))) GTEST_SKIP() << "this device has no products of warpgroups";
  for (const int columns : {72, 136}) {
    const Rows rows(columns);
    const DeviceBytes bytes_a = on_device(view(rows.bytes_a));
    const DeviceBytes bytes_b = on_device(view(rows.bytes_b));
    const DeviceBytes halves_a = on_device(view(rows.halves_a));
    const DeviceBytes halves_b = on_device(view(rows.halves_b));
    const DeviceBytes halves_d = on_device(view(rows.halves_d));
    const DeviceBytes bytes_d =
        on_device(Bytes(sizeof(std::int32_t) * kRows * kByteColumns, DeviceBytes::kPoison));
    check(multiply_rows_on_gpu(
        {bytes_a.data(), bytes_b.data(), reinterpret_cast<std::int32_t*>(bytes_d.data()),
         halves_a.data(), halves_b.data(), reinterpret_cast<float*>(halves_d.data())},
        columns, stream()));
    check(stream().synchronize());
    rows.expect_right(values_of<std::int32_t>(bytes_d.read()), values_of<float>(halves_d.read()));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvlane::gpu
