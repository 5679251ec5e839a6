// What kernels of XXH3-64 are told of a piece of memory, without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlane::gpu {

// Shorter pieces have another sum, which nobody needs here.
inline constexpr std::uint64_t kXxh3BytesMin = 241;

// `data` begins at a multiple of 16 and has kXxh3BytesMin bytes or more.
struct Xxh3Task {
  const std::byte* data;
  std::uint64_t bytes;
  std::uint64_t* sum;  // seed 0, the default secret
};

}  // namespace kvlane::gpu
