// GPUs as this machine has them: devices, streams, events and memory, without any CUDA type.
//
// Whether there is a GPU is found at run time: a program built with CUDA starts and works where no
// driver is, and one built without it has the same interface. Everything that can fail returns
// Status: kUnsupported in a build without CUDA, kUnavailable without driver or device, kExhausted
// without memory, kInternal when a kernel went wrong; after the last, CUDA is of no use to the
// process any more.
//
// Objects belong to one device, are movable, and may be used by one thread at a time. A call makes
// its device the current one of the calling thread. Destructors wait for nothing but memory, which
// waits for all work of its device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane::gpu {

// What the driver says of a device. What it can do per second is measured (kvlane_gpu_bench).
struct Device {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
  int driver = 0;   // the CUDA version the driver knows, 13000 for 13.0
  int runtime = 0;  // the one this program was built with
};

// All of them, at least one; or why there is none.
Result<std::vector<Device>> devices();

// Bytes that can still be taken, as the driver sees it now.
Result<std::size_t> free_memory(int device);

// Makes it the calling thread's current device: for libraries that work on that one.
Status use_device(int device);

class Event;

// Work in the order in which it was given. Does not wait for the default stream.
class Stream {
 public:
  static Result<Stream> create(int device);

  int device() const { return device_; }
  // Until all work is done. Tells what kernels did wrong since the last call.
  Status synchronize() const;
  // Work given from now on begins after `event`.
  Status wait(const Event& event) const;
  // A cudaStream_t.
  void* handle() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(void* handle) const;
  };
  Stream(void* handle, int device) : handle_(handle), device_(device) {}

  std::unique_ptr<void, Destroy> handle_;
  int device_;
};

// A place in a stream.
class Event {
 public:
  static Result<Event> create(int device);
  // For order alone: it cannot tell seconds, and costs less. Who waits for it sleeps, which takes
  // no core from others and some tens of microseconds more.
  static Result<Event> create_untimed(int device);

  int device() const { return device_; }
  // After all work that the stream has now.
  Status record(const Stream& stream);
  // Until the recorded place is reached; at once if none was recorded.
  Status synchronize() const;
  // From `earlier`, recorded as this one is, both timed and on one device. Waits for this one.
  Result<double> seconds_since(const Event& earlier) const;
  // A cudaEvent_t.
  void* handle() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(void* handle) const;
  };
  static Result<Event> create(int device, unsigned flags);
  Event(void* handle, int device) : handle_(handle), device_(device) {}

  std::unique_ptr<void, Destroy> handle_;
  int device_;
};

// Work of a stream that was kept, to be launched as a whole.
class Graph {
 public:
  // Of what `give` gives the stream, which does not do it: launches alone, no copies that have to
  // wait, no memory taken. After an error the stream is as it was.
  static Result<Graph> capture(const Stream& stream, const std::function<Status()>& give);

  // In the order of a stream of the same device.
  Status launch(const Stream& stream) const;

 private:
  struct Destroy {
    void operator()(void* handle) const;
  };
  explicit Graph(void* handle) : handle_(handle) {}

  std::unique_ptr<void, Destroy> handle_;  // a cudaGraphExec_t
};

// Memory of a device, aligned to 256 bytes; contents are whatever was there. May be empty.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> allocate(int device, std::size_t bytes);

  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  DeviceBuffer(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_;
};

// Memory of the host that devices copy from and to while the host goes on. Contents as above.
class PinnedBuffer {
 public:
  // For the transfers of this device (and of any other).
  static Result<PinnedBuffer> allocate(int device, std::size_t bytes);

  std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  PinnedBuffer(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_;
};

// Copies between any two places, host or device, that do not overlap, in the order of the stream.
// With pinned or device memory at both ends the call returns before the copy is done, and both must
// live until then; with other memory of the host it may have to wait.
Status copy(const Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes);
// `rows` pieces of `bytes` bytes each, which begin so far from each other. Addresses as above.
struct RowsCopy {
  std::byte* to;
  std::size_t to_stride;
  const std::byte* from;
  std::size_t from_stride;
  std::size_t bytes;
  std::size_t rows;
};
Status copy_rows(const Stream& stream, const RowsCopy& rows);
// Fills memory of the stream's device with one byte's value.
Status fill(const Stream& stream, std::byte* to, std::byte value, std::size_t bytes);

}  // namespace kvlane::gpu
