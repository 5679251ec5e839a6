// Names of formats as the parts of the program use them: of a whole cache, and of its slabs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlane {

// Longest name of a cache's format, everything included. What frames say, the format of a slab, is
// kFormatNameBytesMax long at most.
inline constexpr std::size_t kCacheFormatBytesMax = 128;

// Whether caches of this format keep rows of 16 bits and never seal them.
inline bool is_row_format(std::string_view cache_format) {
  return cache_format == "bf16" || cache_format == "fp16";
}

// The format of its slabs: the name without what changes no byte of them that travels, that is the
// window (which blocks are sealed: sink, recent) and how attention reads them (compute, sums,
// ktail, rqe, diag).
// "kivi:bits=2,group=32,sink=1" -> "kivi:bits=2,group=32", "mxfp4:recent=2" -> "mxfp4".
std::string slab_format(std::string_view cache_format);

}  // namespace kvlane
