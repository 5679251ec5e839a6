// Products of warpgroups on a GPU: whether there are any, and all of them at once, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device.h"
#include "gpu/warpgroup_device.h"

namespace kvlane::gpu {

// Whether this program has code for sm_90a, and the device runs it: compute capability 9.0.
Result<bool> has_warpgroups(int device);

// `columns` is 72 or 136. What the task points to lies in memory that the stream's device can
// reach. kUnsupported for devices that have no such products, kInvalidArgument for other columns.
Status multiply_rows_on_gpu(const WarpgroupTask& task, int columns, const Stream& stream);

}  // namespace kvlane::gpu
