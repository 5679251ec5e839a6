// The beginning of a text as a model's tokens: what calibration and benchmarks run models over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// A longer text is refused.
inline constexpr std::size_t kTextFileBytesMax = std::size_t{1} << 30;

// At most the first `tokens_max` tokens of a UTF-8 file, at least one, by the tokenizer in the
// model's directory. Reads of the text only what can be needed for them.
Result<std::vector<std::int32_t>> read_text_tokens(const std::filesystem::path& model_directory,
                                                   const std::filesystem::path& text,
                                                   std::size_t tokens_max);

}  // namespace kvlane
