// Device memory with values in it, for benchmarks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "gpu/device.h"

namespace kvlane {

template <class T>
Result<gpu::DeviceBuffer> on_device(const gpu::Stream& stream, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  KVLANE_ASSIGN(gpu::DeviceBuffer buffer, gpu::DeviceBuffer::allocate(stream.device(), bytes));
  KVLANE_TRY(
      gpu::copy(stream, buffer.data(), reinterpret_cast<const std::byte*>(values.data()), bytes));
  KVLANE_TRY(stream.synchronize());
  return buffer;
}

// Fills `bytes` bytes with the pieces one after another, again and again.
inline Status fill_with(const gpu::Stream& stream, const std::vector<Bytes>& pieces, std::byte* to,
                        std::size_t bytes) {
  std::size_t done = 0;
  for (const Bytes& piece : pieces) {
    const std::size_t part = std::min(piece.size(), bytes - done);
    KVLANE_TRY(gpu::copy(stream, to + done, piece.data(), part));
    done += part;
  }
  while (done < bytes) {
    const std::size_t part = std::min(done, bytes - done);
    KVLANE_TRY(gpu::copy(stream, to + done, to, part));
    done += part;
  }
  return stream.synchronize();
}

}  // namespace kvlane
