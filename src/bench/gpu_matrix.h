// What a GPU's matrix unit does when nothing else has to be done: the ceiling that attention's
// products are measured against.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gpu/device.h"

namespace kvlane {

// Operations (a product and a sum are two) of a block of threads in one step.
inline constexpr double kGpuMatrixStep = 8.0 * 8 * 2 * 16 * 8 * 16;

// Products of bfloat16 by CudaThread::mma_bf16, from registers to registers: `blocks` blocks of
// `steps` steps each. 4 bytes at `sink` may change.
Status gpu_multiply(const gpu::Stream& stream, int blocks, int steps, std::byte* sink);

}  // namespace kvlane
