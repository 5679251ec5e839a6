// What an original file holds: which of its bytes are tensors, of which type and shape.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/streams.h"
#include "format/tensor_file.h"
#include "kvlane/status.h"

namespace kvlane {

// What the file itself does not say.
struct OriginalOptions {
  std::optional<TensorFileKind> kind;  // nothing: by its first bytes
  // Of raw values, without which there is no telling; of an array in .npy, whose own types know
  // neither bfloat16 nor FP8.
  std::optional<ElementType> type;
  std::vector<std::uint64_t> shape;  // of raw values; empty: one dimension
};

// safetensors and .npy by their first bytes, else raw.
Result<TensorFileKind> guess_kind(ByteSource& original);

// The segments of the original, without the choice of rows (row_elements 1, plane_rows 1; see
// tensors/rows.h). `original` knows its size; it is untrusted. Fails with kCorrupt when the file is
// not what it seems to be, kInvalidArgument when options do not fit it.
Result<TensorFileHead> read_original(ByteSource& original, const OriginalOptions& options);

// The header of an array file, from "\x93NUMPY" on.
struct NpyHeader {
  std::size_t bytes = 0;             // all of it; the values follow
  std::string descr;                 // "<f4"; of structured types the list as it stands there
  std::size_t item_bytes = 0;        // 0: unknown
  std::vector<std::uint64_t> shape;  // as it lies in memory: reversed if in Fortran order
};
// `file`: the first kNpyHeaderBytesMax bytes, or all there are.
inline constexpr std::size_t kNpyHeaderBytesMax = std::size_t{1} << 20;
Result<NpyHeader> parse_npy_header(ByteView file);
bool begins_npy(ByteView file);

}  // namespace kvlane
