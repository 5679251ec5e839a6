// Parts that lie behind each other in one buffer: how long each has to be for the next one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvlane {

// What kernels and products of a device ask of addresses, and more.
constexpr std::size_t device_aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Lines of the processor's caches.
constexpr std::size_t line_aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace kvlane
