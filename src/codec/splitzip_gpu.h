// Codec `splitzip` on a GPU: many planes in one launch, a block of threads a plane. Bytes and
// verdicts are those of the scalar codec. What a value costs is in codec/splitzip_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "codec/splitzip_batch.h"
#include "gpu/device.h"

namespace kvlane::splitzip {

// `tasks` is [count], and lies, as everything that tasks point to, in memory that the stream's
// device can reach, until the stream has done the launch. Every task is of `type`, any but kF32,
// and has at most kPlaneElementsMax (format/frame.h) values. Outputs do not overlap anything.
// Returns when the launch is in the stream; a count of 0 launches nothing.
//
// A plane's throughput is that of one block: with fewer planes than twice the multiprocessors of
// the device, some of them have nothing to do.
Status encode_on_gpu(ElementType type, const DeviceEncodeTask* tasks, std::size_t count,
                     const gpu::Stream& stream);

// Bodies are untrusted: whatever is in their `body_bytes` bytes, nothing else is read and nothing
// but `plane` and `verdict` is written.
Status decode_on_gpu(ElementType type, const DeviceDecodeTask* tasks, std::size_t count,
                     const gpu::Stream& stream);

}  // namespace kvlane::splitzip
