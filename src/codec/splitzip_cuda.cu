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

// `resident`: so many blocks go on at once.
template <ElementType kType, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    decode_planes(const DeviceDecodeTask* tasks, unsigned resident) {
  __shared__ DeviceDecodeShared shared;
  extern __shared__ __align__(128) DeviceDecodeRoom rooms[];
  gpu::CudaThread thread;
  DeviceDecodeTask task = tasks[blockIdx.x];
  task.type = kType;
  const bool more = KVLANE_SZ_RELAY == 1 && resident < gridDim.x - blockIdx.x;
  decode_plane(thread, task, more ? tasks + blockIdx.x + resident : nullptr, shared, rooms);
}

template <ElementType kType, int kThreads, int kBlocks>
Status start_decode(const DeviceDecodeTask* tasks, std::size_t count, const gpu::Stream& stream) {
  const auto kernel = decode_planes<kType, kThreads, kBlocks>;
  const bool with_room = kDecodeNeedsRoom && kType == ElementType::kBf16;
  const std::size_t room = with_room ? kThreads / gpu::kWarpThreads * sizeof(DeviceDecodeRoom) : 0;
  if (room != 0) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(room));
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
  }
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, stream.device());
  kernel<<<static_cast<unsigned>(count), kThreads, room,
           static_cast<cudaStream_t>(stream.handle())>>>(
      tasks, static_cast<unsigned>(kBlocks * multiprocessors));
  return gpu::launched("splitzip decode");
}

template <ElementType kType>
Status start_decode(const DeviceDecodeTask* tasks, std::size_t count, const gpu::Stream& stream) {
  if (count == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  if (count < kManyPlanes) {
    return start_decode<kType, KVLANE_SZ_FEW, KVLANE_SZ_FEW_BLOCKS>(tasks, count, stream);
  }
  return start_decode<kType, KVLANE_SZ_MANY, KVLANE_SZ_MANY_BLOCKS>(tasks, count, stream);
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
  switch (type) {
    case ElementType::kBf16: return start_decode<ElementType::kBf16>(tasks, count, stream);
    case ElementType::kFp16: return start_decode<ElementType::kFp16>(tasks, count, stream);
    case ElementType::kFp8E4m3: return start_decode<ElementType::kFp8E4m3>(tasks, count, stream);
    case ElementType::kFp8E5m2: return start_decode<ElementType::kFp8E5m2>(tasks, count, stream);
    case ElementType::kF32: break;
  }
  return no_kernels(type);
}

}  // namespace kvlane::splitzip
