// Reading and tokenising.
// SPDX-License-Identifier: Apache-2.0
#include "calib/text_tokens.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/file.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

// The length of the text cut to at most `bytes_max`, where no UTF-8 character is cut in two.
std::size_t whole_characters(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text.size();
  std::size_t length = bytes_max;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  return length;
}

}  // namespace

Result<std::vector<std::int32_t>> read_text_tokens(const std::filesystem::path& model_directory,
                                                   const std::filesystem::path& text,
                                                   std::size_t tokens_max) {
  KVLANE_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(model_directory));
  KVLANE_ASSIGN(std::string words, read_text_file(text, kTextFileBytesMax));
  // Words of many bytes included, no token is longer on the average of any text; the rest of a long
  // file need not be tokenised.
  constexpr std::size_t kBytesPerToken = 16;
  words.resize(whole_characters(words, tokens_max * kBytesPerToken));
  KVLANE_TRY(check_utf8(words).with_context(text.string()));
  auto tokens = tokenizer.encode(words);
  if (!tokens.ok()) return tokens.status().with_context(text.string());
  tokens->resize(std::min(tokens->size(), tokens_max));
  if (tokens->empty()) return invalid_argument(text.string() + " holds no text");
  return tokens;
}

}  // namespace kvlane
