// Detokenising one token at a time, in whole characters.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace kvlane {

std::string TokenStream::push(std::int32_t id) {
  if (tokenizer_->is_special(id)) return {};
  pending_.append(tokenizer_->token_bytes(id));
  const std::size_t held = truncated_utf8_tail(pending_);
  const std::size_t whole = pending_.size() - held;
  std::string text;
  append_replacing_invalid(text, std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return text;
}

std::string TokenStream::finish() {
  std::string text;
  append_replacing_invalid(text, pending_);
  pending_.clear();
  return text;
}

}  // namespace kvlane
