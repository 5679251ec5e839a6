// Copying what will not be read again soon: stores go past the caches, so that the lines they
// overwrite are not read first and what is in the caches stays there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvlane {

// From so many bytes of output on, it is written past the caches. Output of that size is no longer
// in a private cache when somebody reads it. Where shared caches are large, both ways are equally
// fast around this size (lab/splitzip).
inline constexpr std::size_t kStreamingBytes = std::size_t{8} << 20;

// memcpy with such stores: no overlap; any alignment, though only whole 64-byte lines of `to` go
// past the caches. Another thread that learns of the copy in the usual ways (a lock, a flag) sees
// it whole.
void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace kvlane
