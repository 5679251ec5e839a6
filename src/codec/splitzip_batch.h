// What kernels of codec `splitzip` are told of a plane, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/device_verdict.h"
#include "format/element.h"

namespace kvlane::splitzip {

// A plane and what becomes of it. Fast where plane and body begin at multiples of 16.
struct DeviceEncodeTask {
  ElementType type;
  std::uint32_t elements;
  const std::byte* plane;
  const std::uint8_t* codebook;  // kCodebookEntries exponents; null: the plane is counted
  std::byte* body;               // with room for raw_body_bytes() of the plane
  std::uint32_t* body_bytes;     // written
};

// A body and what becomes of it. Fast where both begin at multiples of 16.
struct DeviceDecodeTask {
  ElementType type;
  std::uint32_t elements;
  const std::byte* body;  // untrusted
  std::uint32_t body_bytes;
  std::byte* plane;
  DeviceVerdict* verdict;  // written; if it is not kDecoded the plane holds garbage
};

}  // namespace kvlane::splitzip
