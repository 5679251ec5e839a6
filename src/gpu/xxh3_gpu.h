// XXH3-64 on a GPU: the checksum of what came to its memory past the host's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gpu/device.h"
#include "gpu/xxh3_batch.h"

namespace kvlane::gpu {

// One launch, a block of threads a task. `tasks` is [count], and lies, as everything that tasks
// point to, in memory that the stream's device can reach, until the stream has done the launch.
// Returns when it is in the stream; a count of 0 launches nothing.
Status xxh3_on_gpu(const Xxh3Task* tasks, std::size_t count, const Stream& stream);

}  // namespace kvlane::gpu
