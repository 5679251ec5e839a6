// Kernels of `splitzip`, one a direction and element type: with the type known, a kernel has the
// code and the registers of that type alone.
//
// Block i has plane i; 32 warps a multiprocessor, in four blocks, or in two where a launch has few
// planes. bfloat16 moves 3.5 bytes of memory traffic a value in either direction (2 raw; 1.5 coded,
// and 2 bytes an escape), FP8 about 1.9. A thread has 64 bytes of loads on their way (decoding:
// 48), and the lines of its warp's next span: a multiprocessor 128 KB (96). Escapes are read again,
// from the first-level cache. No spills, which the build insists on. What an H200 says: bench/gpu/.
// SPDX-License-Identifier: Apache-2.0
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
  gpu::CudaThread thread;
  DeviceDecodeTask task = tasks[blockIdx.x];
  task.type = kType;
  decode_plane(thread, task, shared);
}

template <class Task>
using Kernel = void (*)(const Task*);

template <class Task>
Status launch(Kernel<Task> kernel, const Task* tasks, std::size_t count, const gpu::Stream& stream,
              const char* name) {
  if (count == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const int threads = count < kManyPlanes ? kThreads : kThreads / 2;
  kernel<<<static_cast<unsigned>(count), threads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
      tasks);
  return gpu::launched(name);
}

Status no_kernels(ElementType type) {
  return invalid_argument(std::string("planes of codec splitzip cannot be of type ") +
                          element_name(type));
}

}  // namespace

Status encode_on_gpu(ElementType type, const DeviceEncodeTask* tasks, std::size_t count,
                     const gpu::Stream& stream) {
  const auto start = [&](Kernel<DeviceEncodeTask> kernel) {
    return launch(kernel, tasks, count, stream, "splitzip encode");
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
  const auto start = [&](Kernel<DeviceDecodeTask> kernel) {
    return launch(kernel, tasks, count, stream, "splitzip decode");
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
