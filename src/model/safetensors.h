// safetensors files: an 8-byte little-endian header length, a JSON header, then raw tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

// A header names each tensor in some 100 bytes; the largest public checkpoints need well below
// this.
inline constexpr std::size_t kSafetensorsHeaderBytesMax = std::size_t{32} << 20;
inline constexpr std::size_t kTensorsMax = std::size_t{1} << 18;
inline constexpr std::size_t kTensorNameBytesMax = 512;
inline constexpr std::size_t kTensorDimensionsMax = 8;

// One tensor, row-major, pointing into the mapped file. Not necessarily aligned to its elements:
// the format packs tensors without padding.
struct TensorView {
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  ByteView bytes;
};

// What a header says of a tensor. Nothing of it has been held against the data yet.
struct SafetensorsEntry {
  std::string name;
  std::string type;  // any text
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // its bytes, counted from the end of the header
  std::uint64_t end = 0;
};

// A tensor to be written. The caller vouches for the sizes: no overflow.
struct TensorSpec {
  std::string name;
  ElementType type = ElementType::kBf16;
  std::vector<std::int64_t> shape;

  std::uint64_t elements() const;
  std::uint64_t bytes() const { return elements() * element_bytes(type); }
};

// "[96, 32]", as errors print a shape.
std::string shape_text(const std::vector<std::int64_t>& shape);

// The name of an element type in safetensors headers: "F32", "BF16", "F16".
const char* safetensors_type_name(ElementType type);

// Reads the JSON of a header (untrusted): its entries in its order, each name once, each with all
// of its fields, within the limits above. Any type passes, and any shape and range. kCorrupt.
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view text);

// Reads the header of a whole safetensors file (untrusted bytes) and checks it completely before
// use: length, JSON, fields, types, shapes against byte ranges, ranges inside the file, no overlap,
// no gap, no byte left over, no name twice. "__metadata__" is checked and dropped. Types other than
// F32, BF16 and F16 are kUnsupported and named, everything else wrong is kCorrupt. The views point
// into `file`.
Result<std::map<std::string, TensorView>> parse_safetensors(ByteView file);

// What goes before the data of a file that holds `tensors` one after another: header length and
// JSON, padded so that the data begins at a multiple of 8.
Bytes build_safetensors_header(std::span<const TensorSpec> tensors);

}  // namespace kvlane
