// Launches that begin before the one in front of them in their stream has ended: while its last
// blocks of threads run, the next kernel's begin, do what does not depend on it, and wait
// (gpu/device_code.h: let_next_begin(), wait_previous()). For .cu files only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "gpu/cuda_status.h"

namespace kvlane::gpu {

struct LaunchShape {
  std::size_t blocks;
  int threads;
  std::size_t shared_bytes = 0;  // besides what the kernel declares
};

// Of a kernel that calls wait_previous() in every block, and before it writes anything or reads
// what launches in front of it write: the one before it, and so on to the last one that was not
// early. In a graph, or compiled for devices before sm_90, it begins when the one before has ended,
// as any other.
template <class... Parameters, class... Arguments>
Status launch_early(void (*kernel)(Parameters...), const LaunchShape& shape, const Stream& stream,
                    const std::string& what, Arguments&&... arguments) {
  // Code for an older device waits for nothing, wherever it runs.
  cudaFuncAttributes compiled{};
  KVLANE_TRY(
      cuda_status(cudaFuncGetAttributes(&compiled, kernel), "ask what a kernel was compiled for"));
  if (shape.shared_bytes > 0) {
    KVLANE_TRY(cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes)),
        "take " + std::to_string(shape.shared_bytes) + " bytes of shared memory for " + what));
  }
  // In a graph it would be another kind of edge, which no device has run yet.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  KVLANE_TRY(
      cuda_status(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle()), &capture),
                  "ask whether a stream is being captured"));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle());
  config.attrs = &early;
  config.numAttrs = compiled.ptxVersion >= 90 && capture == cudaStreamCaptureStatusNone ? 1 : 0;
  // What went wrong is told by launched(), as for any launch.
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
  return launched(what);
}

}  // namespace kvlane::gpu
