// Element types of tensors, in files and on the wire.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlane {

// The values are part of persistent formats (spec/frame.md): never change or reuse one.
enum class ElementType : std::uint8_t {
  kF32 = 1,
  kBf16 = 2,
  kFp16 = 3,
  kFp8E4m3 = 4,
  kFp8E5m2 = 5,
};

constexpr std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kF32: return 4;
    case ElementType::kBf16:
    case ElementType::kFp16: return 2;
    case ElementType::kFp8E4m3:
    case ElementType::kFp8E5m2: return 1;
  }
  return 0;
}

constexpr const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kBf16: return "bf16";
    case ElementType::kFp16: return "fp16";
    case ElementType::kFp8E4m3: return "fp8_e4m3";
    case ElementType::kFp8E5m2: return "fp8_e5m2";
  }
  return "unknown";
}

}  // namespace kvlane
