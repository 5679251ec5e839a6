// Planes like those of a KV cache, for benchmarks of GPU kernels: made from a fixed seed, or read
// from a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/codec.h"

namespace kvlane {

// K or V of 64 tokens of a Llama-3.1-8B layer.
inline constexpr PlaneShape kGpuBenchShape{ElementType::kBf16, 8, 64, 128};

// So many different planes. Gaussian values, every channel of its own scale, so that nearly all
// exponents are among 16; 0.3 % have any other exponent below. For FP8 rounded towards zero,
// and for E4M3 scaled before that so that the largest are near the end of its range.
std::vector<Bytes> made_planes(ElementType type, int count);

// The whole planes of kGpuBenchShape at the beginning of a file of bfloat16 values, at most so
// many; kInvalidArgument when it does not have one.
Result<std::vector<Bytes>> read_planes(const std::string& file, int count_max);

}  // namespace kvlane
