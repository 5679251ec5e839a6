// Kernels of `splitzip`, one a direction and element type: with the type known, a kernel has the
// code and the registers of that type alone.
//
// Block i has plane i; 32 warps a multiprocessor, in four blocks, or in two where a launch has few
// planes. bfloat16 moves 3.5 bytes of memory traffic a value in either direction (2 raw; 1.5 coded,
// and 2 bytes an escape), FP8 about 1.9. An encoding thread has 64 bytes of loads on their way (of
// FP8 32), and the lines of its warp's next span: a multiprocessor 128 KB (64). Escapes are read
// again, from the first-level cache. A decoding warp has three spans on their way to shared memory:
// 144 KB, of FP8 168. No spills, which the build insists on. What an H200 says: bench/gpu/.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip_device_decode.h"
#include "codec/splitzip_device_encode.h"
#include "codec/splitzip_gpu.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"

namespace kvlane::splitzip {

namespace {

constexpr int kThreads = kDeviceWarps * gpu::kWarpThreads;
constexpr int kBlocks = 2;  // a multiprocessor, so 64 registers a thread
// From so many planes on blocks are half as large: while one begins or ends, more go on.
constexpr std::size_t kManyPlanes = 512;

template <ElementType kType>
__global__ void __launch_bounds__(kThreads, kBlocks) encode_planes(const DeviceEncodeTask* tasks) {
  __shared__ DeviceEncodeShared shared;
  gpu::CudaThread thread;
  DeviceEncodeTask task = tasks[blockIdx.x];
  task.type = kType;
  encode_plane(thread, task, shared);
}

template <ElementType kType>
__global__ void __launch_bounds__(kThreads, kBlocks) decode_planes(const DeviceDecodeTask* tasks) {
  __shared__ DeviceDecodeShared shared;
  extern __shared__ __align__(alignof(DeviceDecodeRing)) std::byte memory[];
  gpu::CudaThread thread;
  DeviceDecodeTask task = tasks[blockIdx.x];
  task.type = kType;
  decode_plane(thread, task, shared, reinterpret_cast<DeviceDecodeRing*>(memory));
}

// A warp takes so much shared memory besides.
template <class Task>
Status launch(void (*kernel)(const Task*), int warp_bytes, const Task* tasks, std::size_t count,
              const gpu::Stream& stream, const char* name) {
  if (count == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const int threads = count < kManyPlanes ? kThreads : kThreads / 2;
  if (warp_bytes != 0) {
    // The same whoever launches: others may do so at the same time.
    const int most = kDeviceWarps * warp_bytes;
    KVLANE_TRY(gpu::cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
        "take " + std::to_string(most) + " bytes of shared memory for " + name));
    // Else the driver leaves room for fewer blocks than there could be.
    KVLANE_TRY(gpu::cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "prefer shared memory"));
  }
  const int bytes = threads / gpu::kWarpThreads * warp_bytes;
  kernel<<<static_cast<unsigned>(count), threads, bytes,
           static_cast<cudaStream_t>(stream.handle())>>>(tasks);
  return gpu::launched(name);
}

Status no_kernels(ElementType type) {
  return invalid_argument(std::string("planes of codec splitzip cannot be of type ") +
                          element_name(type));
}

}  // namespace

Status encode_on_gpu(ElementType type, const DeviceEncodeTask* tasks, std::size_t count,
                     const gpu::Stream& stream) {
  const auto start = [&](void (*kernel)(const DeviceEncodeTask*)) {
    return launch(kernel, 0, tasks, count, stream, "splitzip encode");
  };
  switch (type) {
    case ElementType::kBf16: return start(encode_planes<ElementType::kBf16>);
    case ElementType::kFp16: return start(encode_planes<ElementType::kFp16>);
    case ElementType::kFp8E4m3: return start(encode_planes<ElementType::kFp8E4m3>);
    case ElementType::kFp8E5m2: return start(encode_planes<ElementType::kFp8E5m2>);
    case ElementType::kF32: break;
  }
  return no_kernels(type);
}

Status decode_on_gpu(ElementType type, const DeviceDecodeTask* tasks, std::size_t count,
                     const gpu::Stream& stream) {
  const auto start = [&](void (*kernel)(const DeviceDecodeTask*)) {
    const int warp_bytes = can_be_coded(type) ? sizeof(DeviceDecodeRing) : 0;
    return launch(kernel, warp_bytes, tasks, count, stream, "splitzip decode");
  };
  switch (type) {
    case ElementType::kBf16: return start(decode_planes<ElementType::kBf16>);
    case ElementType::kFp16: return start(decode_planes<ElementType::kFp16>);
    case ElementType::kFp8E4m3: return start(decode_planes<ElementType::kFp8E4m3>);
    case ElementType::kFp8E5m2: return start(decode_planes<ElementType::kFp8E5m2>);
    case ElementType::kF32: break;
  }
  return no_kernels(type);
}

}  // namespace kvlane::splitzip
