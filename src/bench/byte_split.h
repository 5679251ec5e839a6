// BF16 values taken apart into a plane of exponents and a plane of what is left of them: what
// general compressors need to see their regularity.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/bytes.h"

namespace kvlane {

// `exponents` and `rests` have a byte for each value.
void split_bytes(ByteView values, std::byte* exponents, std::byte* rests);
void join_bytes(const std::byte* exponents, const std::byte* rests, std::span<std::byte> values);

}  // namespace kvlane
