// What attention on codes is held against on a GPU: attention on the same pages by kernels that
// make numbers of the codes and then compute. Device code is in bench/gpu_dequantise_device.h and
// bench/gpu_dequantise_cores_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "attention/hack_decode_gpu.h"

namespace kvlane {

enum class GpuDequantiser {
  kMatrixWhole,  // on the matrix unit, values m + s (c - h) in binary16
  kMatrixSplit,  // on the matrix unit, c - h in binary16; m and s meet queries, scores and weights
  kCores,        // without it, c - h as floats
};

// As attend_hack_on_gpu() for bare `hack` at head_dim 128, with the same prepared queries and
// units; kInvalidArgument for other pages.
Status attend_dequantised_on_gpu(GpuDequantiser how, const HackDecodeBatch& batch,
                                 const DecodeUnit* units, std::size_t count,
                                 const gpu::Stream& stream);

}  // namespace kvlane
