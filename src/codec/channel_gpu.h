// Codec `splitzip:channel` on a GPU: many planes in one launch, a block of threads a plane. Bytes
// and verdicts are those of the scalar codec. What a value costs is in codec/channel_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "codec/channel_batch.h"
#include "gpu/device.h"

namespace kvlane::channel {

// As in codec/splitzip_gpu.h; shapes may differ within a launch.
Status encode_on_gpu(const DeviceEncodeTask* tasks, std::size_t count, const gpu::Stream& stream);
Status decode_on_gpu(const DeviceDecodeTask* tasks, std::size_t count, const gpu::Stream& stream);

}  // namespace kvlane::channel
