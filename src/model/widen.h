// Tensors of any type as F32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bf16.h"
#include "format/element.h"

namespace kvlane {

// `count` elements of type kF32, kBf16 or kFp16. Tensors of a file need not be aligned to their
// type.
inline void widen(ElementType type, const std::byte* source, std::size_t count, float* out) {
  if (type == ElementType::kF32) {
    std::memcpy(out, source, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    out[i] = type == ElementType::kBf16 ? to_float(bf16{bits}) : to_float(fp16{bits});
  }
}

}  // namespace kvlane
