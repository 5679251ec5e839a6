// Detokenising one token at a time, in whole characters.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace kvlane {

TokenStream::TokenStream(const Tokenizer& tokenizer, Begin begin)
    : tokenizer_(&tokenizer),
      progress_(begin == Begin::kText ? tokenizer.detokenizer().start() : Detokenizer::Progress{}) {
}

std::string TokenStream::push(std::int32_t id) {
  if (tokenizer_->is_special(id)) return {};
  tokenizer_->detokenizer().append(id, progress_, pending_);
  return release(pending_.size() - truncated_utf8_tail(pending_));
}

std::string TokenStream::finish() { return release(pending_.size()); }

std::string TokenStream::release(std::size_t bytes) {
  std::string text;
  append_replacing_invalid(text, std::string_view(pending_).substr(0, bytes),
                           tokenizer_->detokenizer().invalid_unit());
  pending_.erase(0, bytes);
  return text;
}

}  // namespace kvlane
