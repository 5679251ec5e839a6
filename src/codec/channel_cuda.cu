// Kernels of `splitzip:channel`.
//
// Block i has plane i; 8 warps, each with a tile at a time. A value moves about 3.34 bytes of
// memory traffic (2 raw; 1.34 coded at a ratio of 1.49). Encoding, a thread has 64 bytes of loads
// on their way, a multiprocessor of sm_90 48 KB; decoding 40 bytes that no other thread loads, and
// 40 KB. A warp's share of shared memory, the tile's exponents and what becomes of them, is 5 KB
// when encoding and 4 when decoding. No spills, which the build insists on.
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel_device_decode.h"
#include "codec/channel_device_encode.h"
#include "codec/channel_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane::channel {

namespace {

constexpr int kThreads = kDeviceWarps * gpu::kWarpThreads;
// Blocks a multiprocessor, as many as leave each thread the registers it needs: 80, or 64.
constexpr int kEncodeBlocks = 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kDecodeBlocks = 3;
#else
constexpr int kDecodeBlocks = 4;
#endif

__global__ void __launch_bounds__(kThreads, kEncodeBlocks)
    encode_planes(const DeviceEncodeTask* tasks) {
  __shared__ DeviceEncodeShared shared;
  gpu::CudaThread thread;
  encode_plane(thread, tasks[blockIdx.x], shared);
}

__global__ void __launch_bounds__(kThreads, kDecodeBlocks)
    decode_planes(const DeviceDecodeTask* tasks) {
  __shared__ DeviceDecodeShared shared;
  gpu::CudaThread thread;
  decode_plane(thread, tasks[blockIdx.x], shared);
}

template <class Task>
Status launch(void (*kernel)(const Task*), const Task* tasks, std::size_t count,
              const gpu::Stream& stream, const char* name) {
  if (count == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  kernel<<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
      tasks);
  return gpu::launched(name);
}

}  // namespace

Status encode_on_gpu(const DeviceEncodeTask* tasks, std::size_t count, const gpu::Stream& stream) {
  return launch(encode_planes, tasks, count, stream, "splitzip:channel encode");
}

Status decode_on_gpu(const DeviceDecodeTask* tasks, std::size_t count, const gpu::Stream& stream) {
  return launch(decode_planes, tasks, count, stream, "splitzip:channel decode");
}

}  // namespace kvlane::channel
