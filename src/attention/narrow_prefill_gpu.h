// Prefill attention over sealed pages of few channels on a GPU: units of sealed pages leave partial
// states, and attention over rows goes on with these (attend_window_on_gpu() of
// attention/prefill_gpu.h), in the same units. Device code is in attention/narrow_prefill_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/narrow_prefill_batch.h"
#include "attention/prefill_gpu.h"

namespace kvlane {

// `units` is [count], from plan_prefill() with prefill_shape(); heads are as wide as `width_max` at
// most, a multiple of 16 up to head_dim. They and everything that `batch` points to lie in memory
// that the stream's device can reach, until the stream has done the launch. States of rows that no
// span has stay as they are. Returns when the launch is in the stream; a count of 0 launches
// nothing. kInvalidArgument for shapes that have no kernel and addresses that are not multiples of
// 16.
Status attend_narrow_prefill_on_gpu(const NarrowPrefillBatch& batch, int width_max,
                                    const PrefillUnit* units, std::size_t count,
                                    const gpu::Stream& stream);

// What the launcher asks first.
Status check_narrow_prefill(const NarrowPrefillBatch& batch, int width_max);

}  // namespace kvlane
