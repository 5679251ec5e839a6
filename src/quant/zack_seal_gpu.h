// Sealing blocks of rows to narrow pages on a GPU. Device code is in quant/zack_seal_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device.h"
#include "quant/zack_seal_batch.h"

namespace kvlane {

// What `batch` points to lies in memory that the stream's device can reach, until the stream has
// done the launch: `count` places, whose pages are written whole; nothing happens where `rows` of
// one is negative. Returns when the launch is in the stream; a count of 0 launches nothing. Who
// reads the slabs looks at `beyond` first. kInvalidArgument for a head_dim that is not a multiple
// of 16 up to 256, and for addresses that are not aligned.
Status seal_narrow_on_gpu(const ZackSealBatch& batch, std::size_t count, const gpu::Stream& stream);

}  // namespace kvlane
