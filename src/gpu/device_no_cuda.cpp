// gpu/device.h for builds without CUDA: nothing is there, and it says so.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"
#include "gpu/no_cuda.h"

namespace kvlane::gpu {

Result<std::vector<Device>> devices() { return no_cuda(); }
Result<std::size_t> free_memory(int) { return no_cuda(); }
Status use_device(int) { return no_cuda(); }

Result<Stream> Stream::create(int) { return no_cuda(); }
Status Stream::synchronize() const { return no_cuda(); }
Status Stream::wait(const Event&) const { return no_cuda(); }
void Stream::Destroy::operator()(void*) const {}

Result<Event> Event::create(int) { return no_cuda(); }
Result<Event> Event::create_untimed(int) { return no_cuda(); }
Status Event::record(const Stream&) { return no_cuda(); }
Status Event::synchronize() const { return no_cuda(); }
Result<double> Event::seconds_since(const Event&) const { return no_cuda(); }
void Event::Destroy::operator()(void*) const {}

Result<Graph> Graph::capture(const Stream&, const std::function<Status()>&) { return no_cuda(); }
Status Graph::launch(const Stream&) const { return no_cuda(); }
void Graph::Destroy::operator()(void*) const {}

Result<DeviceBuffer> DeviceBuffer::allocate(int, std::size_t) { return no_cuda(); }
void DeviceBuffer::Free::operator()(std::byte*) const {}
Result<PinnedBuffer> PinnedBuffer::allocate(int, std::size_t) { return no_cuda(); }
void PinnedBuffer::Free::operator()(std::byte*) const {}

Status copy(const Stream&, std::byte*, const std::byte*, std::size_t) { return no_cuda(); }
Status copy_rows(const Stream&, const RowsCopy&) { return no_cuda(); }
Status fill(const Stream&, std::byte*, std::byte, std::size_t) { return no_cuda(); }

}  // namespace kvlane::gpu
