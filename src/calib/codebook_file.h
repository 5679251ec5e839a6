// Codebooks of a model in a file: spec/codebook_file.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

// A longer file is refused.
inline constexpr std::size_t kCodebookFileBytesMax = std::size_t{16} << 20;

struct CalibratedCodebook {
  Codebook book;
  double coverage = 0;  // share of the values counted that are in it
};

struct CodebookFile {
  ModelIdentity model{};
  std::uint64_t tokens = 0;               // counted
  std::vector<CalibratedCodebook> books;  // K then V for each layer
};

std::string to_json(const CodebookFile& file);

// Untrusted text, for a model with such KV. kCorrupt when it is no codebook file, kUnsupported for
// another version or element type, kInvalidArgument when it belongs to another model.
Result<CodebookFile> parse_codebook_file(std::string_view text, const ModelIdentity& model,
                                         const KvShape& shape);

}  // namespace kvlane
