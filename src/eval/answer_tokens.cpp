// What is left of both when the question is taken off.
// SPDX-License-Identifier: Apache-2.0
#include "eval/answer_tokens.h"

#include <algorithm>
#include <string>

namespace kvlane {

Result<std::vector<std::int32_t>> answer_tokens(const Tokenizer& tokenizer,
                                                std::string_view question, std::string_view value) {
  const std::string answer = " " + std::string(value);
  KVLANE_ASSIGN(const auto before, tokenizer.encode(question, false));
  KVLANE_ASSIGN(auto both, tokenizer.encode(std::string(question) + answer, false));
  if (both.size() <= before.size() || !std::equal(before.begin(), before.end(), both.begin())) {
    return tokenizer.encode(answer, false);
  }
  both.erase(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(before.size()));
  return both;
}

}  // namespace kvlane
