// Sealing blocks of rows for attention on codes on a GPU. Device code is in
// quant/hack_seal_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device.h"
#include "quant/hack_seal_batch.h"

namespace kvlane {

// What `batch` points to lies in memory that the stream's device can reach, until the stream has
// done the launch: `count` places, whose pages are written whole. Returns when the launch is in the
// stream; a count of 0 launches nothing. Who reads the slabs looks at `beyond` first.
// kInvalidArgument for a head_dim that is not a multiple of 16 up to 256, metadata that are not
// fp16, and addresses that are not aligned.
Status seal_hack_on_gpu(const HackSealBatch& batch, std::size_t count, const gpu::Stream& stream);

}  // namespace kvlane
