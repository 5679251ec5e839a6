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
};

constexpr std::size_t element_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

constexpr const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kBf16: return "bf16";
    case ElementType::kFp16: return "fp16";
  }
  return "unknown";
}

}  // namespace kvlane
