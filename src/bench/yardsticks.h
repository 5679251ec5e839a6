// What else one could compress KV with, for comparison: general compressors, plain and behind a
// transformation that suits 16-bit floating-point values. Part of the benchmark, not of the
// product.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bench/coders.h"

namespace kvlane {

// zstd1, zstd3, lz4, bytesplit_zstd1, bytesplit_huffman and bitshuffle_lz4 (docs/bench.md). For
// planes of bfloat16 of any length up to their `bound`'s shape, not empty; codebooks are ignored.
std::vector<Coder> yardsticks();

}  // namespace kvlane
