// Device memory with values in it, for benchmarks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
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

template <class T>
Result<std::vector<T>> on_host(const gpu::Stream& stream, const gpu::DeviceBuffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  KVLANE_TRY(gpu::copy(stream, reinterpret_cast<std::byte*>(values.data()), buffer.data(),
                       values.size() * sizeof(T)));
  KVLANE_TRY(stream.synchronize());
  return values;
}

// Of BF16 numbers that `name` has computed.
inline Status check_finite(const gpu::Stream& stream, const gpu::DeviceBuffer& results,
                           const std::string& name) {
  KVLANE_ASSIGN(const auto values, on_host<std::uint16_t>(stream, results));
  if (std::ranges::all_of(values, [](std::uint16_t bits) { return (bits & 0x7F80) != 0x7F80; })) {
    return {};
  }
  return internal_error(name + " has a result that is not finite");
}

// Of what kernels note of values that they refuse.
inline Status check_none(const gpu::Stream& stream, const gpu::DeviceBuffer& refused,
                         const char* sentence) {
  KVLANE_ASSIGN(const auto values, on_host<std::uint32_t>(stream, refused));
  if (std::ranges::all_of(values, [](std::uint32_t wrong) { return wrong == 0; })) return {};
  return internal_error(sentence);
}

}  // namespace kvlane
