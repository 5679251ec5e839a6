// GGUF files, as llama.cpp writes them: metadata, the list of tensors, then their data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// Most entries of metadata; known files have some 40.
inline constexpr std::size_t kGgufEntriesMax = 4096;
// Longest list in metadata; the longest known are merges of some 300,000.
inline constexpr std::size_t kGgufListMax = std::size_t{4} << 20;
inline constexpr std::size_t kGgufDimensionsMax = 4;

// The types of tensors that are read; the values are those of the file.
enum class GgufType : std::uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBf16 = 30 };

// A block of Q8_0: 32 numbers of 8 bits with one F16 in front that they are multiplied by.
inline constexpr std::size_t kQ8BlockElements = 32;
inline constexpr std::size_t kQ8BlockBytes = 34;

// Row-major, pointing into the file.
struct GgufTensor {
  GgufType type = GgufType::kF32;
  std::vector<std::int64_t> shape;  // the slowest dimension first, as in safetensors
  ByteView bytes;
};

// All numbers as double: what a model needs of them is exact so. Text points into the file and may
// be any bytes.
using GgufValue = std::variant<double, bool, std::string_view, std::vector<double>,
                               std::vector<std::string_view>>;

struct GgufFile {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

// Where the texts of tokens are.
inline constexpr std::string_view kGgufTokens = "tokenizer.ggml.tokens";

// An entry of metadata; null when it is absent or of another type.
template <class T>
const T* find_entry(const GgufFile& file, std::string_view name) {
  const auto at = file.metadata.find(name);
  return at == file.metadata.end() ? nullptr : std::get_if<T>(&at->second);
}

// Reads a whole file of version 2 or 3 (untrusted bytes) and checks every size before it is used:
// names once each, shapes against bytes, tensors inside the file. kUnsupported names types of
// tensors and versions that are not read and what is above a limit; everything else wrong is
// kCorrupt. The views point into `file`.
Result<GgufFile> parse_gguf(ByteView file);

// `count` elements of a tensor from element `first` on, as F32. Both are multiples of 32 for Q8_0.
void dequantise(const GgufTensor& tensor, std::size_t first, std::size_t count, float* out);

}  // namespace kvlane
