// What a GPU's memory can do: copying, reading, writing, with nothing computed. The ceilings that
// kernels are measured against.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gpu/device.h"

namespace kvlane {

// All sizes are multiples of this, all addresses of 16.
inline constexpr std::size_t kGpuCopyBytes = 16384;

// By a kernel; gpu::copy() lets the driver choose.
Status gpu_copy_by_kernel(const gpu::Stream& stream, std::byte* to, const std::byte* from,
                          std::size_t bytes);
// Reads all of it; 4 bytes at `sink` may change.
Status gpu_read(const gpu::Stream& stream, const std::byte* from, std::size_t bytes,
                std::byte* sink);
Status gpu_write(const gpu::Stream& stream, std::byte* to, std::size_t bytes);

}  // namespace kvlane
