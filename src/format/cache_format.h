// Names of formats as the parts of the program use them: of a whole cache, and of its slabs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlane {

// Longest name of a cache's format, its window included:
// "kvquant:bits=4,outliers=1,room=token,sink=1024,recent=1024" and a little room.
inline constexpr std::size_t kCacheFormatBytesMax = 64;

// Whether caches of this format keep rows of 16 bits and never seal them.
inline bool is_row_format(std::string_view cache_format) {
  return cache_format == "bf16" || cache_format == "fp16";
}

// The format of its slabs: the name without its window, which says what is sealed, not how.
// "kivi:bits=2,group=32,sink=1" -> "kivi:bits=2,group=32", "mxfp4:recent=2" -> "mxfp4".
std::string slab_format(std::string_view cache_format);

}  // namespace kvlane
