// Files of JSON lines with texts in them, as tests of language models are handed around.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Far more than any known file of examples.
inline constexpr std::size_t kJsonLinesBytesMax = std::size_t{256} << 20;

struct JsonLines {
  std::string digest;  // of the file: the first 16 digits of its SHA-256
  std::vector<std::map<std::string, std::string>> lines;
};

// The fields of each line that are texts; others are left out. Empty lines are skipped; a line that
// is no JSON object is an error that names it. Files are plain text: compressed ones are refused.
Result<JsonLines> read_json_lines(const std::filesystem::path& file);

}  // namespace kvlane
