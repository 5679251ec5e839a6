// Errors of CUDA as Status. For .cu files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "gpu/device.h"
#include "kvlane/status.h"

namespace kvlane::gpu {

// `what` is what was tried, as "to copy 4096 bytes".
Status cuda_status(cudaError_t error, std::string_view what);

// Of a kernel that has just been launched. Says nothing of what it does: Stream::synchronize()
// does.
Status launched(std::string_view kernel);

}  // namespace kvlane::gpu
