// Products of warpgroups on sm_90a.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "gpu/cuda_status.h"
#include "gpu/hopper_thread.h"
#include "gpu/warpgroup_gpu.h"

namespace kvlane::gpu {

namespace {

template <int kColumns>
__global__ void __launch_bounds__(kWarpgroupTestThreads)
    multiply_all_rows(const WarpgroupTask task) {
  using Shared = WarpgroupShared<kColumns>;
  extern __shared__ __align__(alignof(Shared)) std::byte memory[];
  HopperThread thread;
  multiply_rows<kColumns>(thread, task, *reinterpret_cast<Shared*>(memory));
}

template <int kColumns>
Status launch(const WarpgroupTask& task, const Stream& stream) {
  constexpr int kBytes = sizeof(WarpgroupShared<kColumns>);
  KVLANE_TRY(cuda_status(cudaFuncSetAttribute(multiply_all_rows<kColumns>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                         "take shared memory for products of warpgroups"));
  multiply_all_rows<kColumns>
      <<<1, kWarpgroupTestThreads, kBytes, static_cast<cudaStream_t>(stream.handle())>>>(task);
  return launched("products of warpgroups");
}

}  // namespace

Result<bool> has_warpgroups(int device) {
  int major = 0, minor = 0;
  for (const auto& [attribute, of] : {std::pair(cudaDevAttrComputeCapabilityMajor, &major),
                                      std::pair(cudaDevAttrComputeCapabilityMinor, &minor)}) {
    KVLANE_TRY(cuda_status(cudaDeviceGetAttribute(of, attribute, device),
                           "ask for a device's compute capability"));
  }
  return major == 9 && minor == 0;
}

Status multiply_rows_on_gpu(const WarpgroupTask& task, int columns, const Stream& stream) {
  KVLANE_ASSIGN(const bool there, has_warpgroups(stream.device()));
  if (!there) return unsupported("products of warpgroups need a device of compute capability 9.0");
  KVLANE_TRY(use_device(stream.device()));
  if (columns == 72) return launch<72>(task, stream);
  if (columns == 136) return launch<136>(task, stream);
  return invalid_argument("rows are multiplied with 72 or 136 columns, not " +
                          std::to_string(columns));
}

}  // namespace kvlane::gpu
