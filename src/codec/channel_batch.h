// What kernels of codec `splitzip:channel` are told of a plane, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "codec/device_verdict.h"

namespace kvlane::channel {

// A plane and what becomes of it. Fast where plane and body begin at multiples of 16.
struct DeviceEncodeTask {
  PlaneShape shape;
  const std::byte* plane;
  std::byte* body;            // with room for raw_body_bytes() of the plane
  std::uint32_t* body_bytes;  // written
};

// A body and what becomes of it. Fast where both begin at multiples of 16.
struct DeviceDecodeTask {
  PlaneShape shape;
  const std::byte* body;  // untrusted
  std::uint32_t body_bytes;
  std::byte* plane;
  DeviceVerdict* verdict;  // written; if it is not kDecoded the plane holds garbage
};

}  // namespace kvlane::channel
