// gpu/device.h over the CUDA runtime, which is linked statically: a program starts without a
// driver.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include <string>

#include "gpu/cuda_status.h"

namespace kvlane::gpu {

namespace {

cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }
cudaEvent_t event_of(const Event& event) { return static_cast<cudaEvent_t>(event.handle()); }

std::string with_bytes(std::string_view verb, std::size_t bytes, std::string_view what) {
  return std::string(verb) + " " + std::to_string(bytes) + " bytes" + std::string(what);
}

Result<int> attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  KVLANE_TRY(cuda_status(cudaDeviceGetAttribute(&value, name, device),
                         "ask device " + std::to_string(device) + " what it can do"));
  return value;
}

Result<Device> describe(int index) {
  cudaDeviceProp all{};
  KVLANE_TRY(cuda_status(cudaGetDeviceProperties(&all, index),
                         "ask device " + std::to_string(index) + " for its properties"));
  Device device;
  device.index = index;
  device.name = all.name;
  device.memory_bytes = all.totalGlobalMem;
  KVLANE_ASSIGN(device.major, attribute(cudaDevAttrComputeCapabilityMajor, index));
  KVLANE_ASSIGN(device.minor, attribute(cudaDevAttrComputeCapabilityMinor, index));
  KVLANE_ASSIGN(device.multiprocessors, attribute(cudaDevAttrMultiProcessorCount, index));
  KVLANE_ASSIGN(const int l2_bytes, attribute(cudaDevAttrL2CacheSize, index));
  device.l2_bytes = static_cast<std::size_t>(l2_bytes);
  KVLANE_TRY(cuda_status(cudaDriverGetVersion(&device.driver), "ask for the driver's version"));
  KVLANE_TRY(cuda_status(cudaRuntimeGetVersion(&device.runtime), "ask for the runtime's version"));
  return device;
}

}  // namespace

Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  // So that the next call does not report it again.
  static_cast<void>(cudaGetLastError());
  const std::string sentence = "the GPU refused to " + std::string(what) + ": " +
                               cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  switch (error) {
    // The first is what CUDA says where there is no driver at all.
    case cudaErrorInsufficientDriver:
      return unavailable("this machine has no NVIDIA driver that CUDA " +
                         std::to_string(CUDART_VERSION / 1000) + "." +
                         std::to_string(CUDART_VERSION % 1000 / 10) + " can use");
    case cudaErrorNoDevice: return unavailable("this machine has no CUDA device");
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorDevicesUnavailable: return unavailable(sentence);
    case cudaErrorMemoryAllocation: return exhausted(sentence);
    case cudaErrorInvalidDevice: return invalid_argument(sentence);
    case cudaErrorNoKernelImageForDevice: return unsupported(sentence);
    default: return internal_error(sentence);
  }
}

Status launched(std::string_view kernel) {
  return cuda_status(cudaGetLastError(), "start the kernel " + std::string(kernel));
}

Status use_device(int device) {
  return cuda_status(cudaSetDevice(device), "use device " + std::to_string(device));
}

Result<std::vector<Device>> devices() {
  int count = 0;
  KVLANE_TRY(cuda_status(cudaGetDeviceCount(&count), "count its devices"));
  if (count == 0) return unavailable("this machine has no CUDA device");
  std::vector<Device> found;
  for (int index = 0; index < count; ++index) {
    KVLANE_ASSIGN(Device device, describe(index));
    found.push_back(std::move(device));
  }
  return found;
}

Result<std::size_t> free_memory(int device) {
  KVLANE_TRY(use_device(device));
  std::size_t free = 0, all = 0;
  KVLANE_TRY(cuda_status(cudaMemGetInfo(&free, &all), "say how much memory is free"));
  return free;
}

Result<Stream> Stream::create(int device) {
  KVLANE_TRY(use_device(device));
  cudaStream_t stream = nullptr;
  KVLANE_TRY(
      cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream"));
  return Stream(stream, device);
}

Status Stream::synchronize() const {
  KVLANE_TRY(use_device(device_));
  return cuda_status(cudaStreamSynchronize(stream_of(*this)), "finish the work of a stream");
}

Status Stream::wait(const Event& event) const {
  KVLANE_TRY(use_device(device_));
  return cuda_status(cudaStreamWaitEvent(stream_of(*this), event_of(event), 0),
                     "let a stream wait for an event");
}

// What destructors are told can only be of earlier work, which synchronize() reports.
void Stream::Destroy::operator()(void* handle) const {
  static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(handle)));
}

Result<Event> Event::create(int device) { return create(device, cudaEventDefault); }
Result<Event> Event::create_untimed(int device) {
  return create(device, cudaEventDisableTiming | cudaEventBlockingSync);
}

Result<Event> Event::create(int device, unsigned flags) {
  KVLANE_TRY(use_device(device));
  cudaEvent_t event = nullptr;
  KVLANE_TRY(cuda_status(cudaEventCreateWithFlags(&event, flags), "create an event"));
  return Event(event, device);
}

Status Event::record(const Stream& stream) {
  KVLANE_TRY(use_device(device_));
  return cuda_status(cudaEventRecord(event_of(*this), stream_of(stream)), "record an event");
}

Status Event::synchronize() const {
  KVLANE_TRY(use_device(device_));
  return cuda_status(cudaEventSynchronize(event_of(*this)), "reach an event");
}

Result<double> Event::seconds_since(const Event& earlier) const {
  KVLANE_TRY(synchronize());
  float milliseconds = 0;
  KVLANE_TRY(cuda_status(cudaEventElapsedTime(&milliseconds, event_of(earlier), event_of(*this)),
                         "time two events"));
  return double{milliseconds} * 1e-3;
}

void Event::Destroy::operator()(void* handle) const {
  static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(handle)));
}

Result<Graph> Graph::capture(const Stream& stream, const std::function<Status()>& give) {
  KVLANE_TRY(use_device(stream.device()));
  // Other threads may go on taking memory meanwhile.
  KVLANE_TRY(
      cuda_status(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
                  "capture a stream"));
  const Status given = give();
  cudaGraph_t graph = nullptr;
  const Status ended = cuda_status(cudaStreamEndCapture(stream_of(stream), &graph),
                                   "capture what a stream was given");
  cudaGraphExec_t launchable = nullptr;
  const auto make = [&]() -> Status {
    KVLANE_TRY(given);
    KVLANE_TRY(ended);
    return cuda_status(cudaGraphInstantiate(&launchable, graph, 0), "make a graph");
  };
  const Status made = make();
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  KVLANE_TRY(made);
  return Graph(launchable);
}

Status Graph::launch(const Stream& stream) const {
  KVLANE_TRY(use_device(stream.device()));
  return cuda_status(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_.get()), stream_of(stream)),
      "launch a graph");
}

void Graph::Destroy::operator()(void* handle) const {
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle)));
}

Result<DeviceBuffer> DeviceBuffer::allocate(int device, std::size_t bytes) {
  KVLANE_TRY(use_device(device));
  void* data = nullptr;
  if (bytes > 0) {
    KVLANE_TRY(
        cuda_status(cudaMalloc(&data, bytes), with_bytes("allocate", bytes, " of its memory")));
  }
  return DeviceBuffer(static_cast<std::byte*>(data), bytes);
}

void DeviceBuffer::Free::operator()(std::byte* data) const { static_cast<void>(cudaFree(data)); }

Result<PinnedBuffer> PinnedBuffer::allocate(int device, std::size_t bytes) {
  KVLANE_TRY(use_device(device));
  void* data = nullptr;
  if (bytes > 0) {
    KVLANE_TRY(cuda_status(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                           with_bytes("pin", bytes, " of the host's memory")));
  }
  return PinnedBuffer(static_cast<std::byte*>(data), bytes);
}

void PinnedBuffer::Free::operator()(std::byte* data) const {
  static_cast<void>(cudaFreeHost(data));
}

Status copy(const Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return {};
  KVLANE_TRY(use_device(stream.device()));
  return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)),
                     with_bytes("copy", bytes, ""));
}

Status copy_rows(const Stream& stream, const RowsCopy& rows) {
  if (rows.bytes == 0 || rows.rows == 0) return {};
  KVLANE_TRY(use_device(stream.device()));
  return cuda_status(cudaMemcpy2DAsync(rows.to, rows.to_stride, rows.from, rows.from_stride,
                                       rows.bytes, rows.rows, cudaMemcpyDefault, stream_of(stream)),
                     with_bytes("copy rows of", rows.bytes, ""));
}

Status fill(const Stream& stream, std::byte* to, std::byte value, std::size_t bytes) {
  if (bytes == 0) return {};
  KVLANE_TRY(use_device(stream.device()));
  return cuda_status(cudaMemsetAsync(to, static_cast<int>(value), bytes, stream_of(stream)),
                     with_bytes("fill", bytes, ""));
}

}  // namespace kvlane::gpu
