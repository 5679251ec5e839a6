// The tokens of an answer behind its question.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/tokenizer.h"

namespace kvlane {

// Of a blank and `value`, as they are in one text with `question`, which is a prompt's end: a
// tokenizer of sentencepiece's kind would put a blank of its own before a text that begins with
// them. Where question and answer share a token, those of the answer alone.
Result<std::vector<std::int32_t>> answer_tokens(const Tokenizer& tokenizer,
                                                std::string_view question, std::string_view value);

}  // namespace kvlane
