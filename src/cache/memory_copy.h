// Copies between memories that a processor may not reach itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>

#include "kvlane/status.h"

namespace kvlane {

// From anywhere to anywhere, host or device, not overlapping; done when it returns. For one thread
// at a time. An error is the device's.
using MemoryCopy = std::function<Status(std::byte* to, const std::byte* from, std::size_t bytes)>;

inline Status copy_on_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

}  // namespace kvlane
