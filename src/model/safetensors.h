// safetensors files: an 8-byte little-endian header length, a JSON header, then raw tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

// One tensor, row-major, pointing into the mapped file.
struct TensorView {
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  ByteView bytes;
};

// Reads the header of a whole safetensors file (untrusted bytes) and checks it completely before use:
// length, JSON, types, shapes against byte ranges, ranges inside the file, no overlap, no gap. Types
// other than F32, BF16 and F16 are kUnsupported and named.
Result<std::map<std::string, TensorView>> parse_safetensors(ByteView file);

}  // namespace kvlane
