// Each step gives its pieces to the next.
// SPDX-License-Identifier: Apache-2.0
#include "model/bpe_encoder.h"

namespace kvlane {

Status BpeEncoder::encode(std::string_view text, bool first, std::vector<std::int32_t>& ids) const {
  if (normalizer_.empty()) return encode_normalized(text, first, ids);
  KVLANE_ASSIGN(const std::string normal, normalizer_.apply(text));
  return encode_normalized(normal, first, ids);
}

Status BpeEncoder::encode_normalized(std::string_view text, bool first,
                                     std::vector<std::int32_t>& ids) const {
  Bpe::Scratch scratch;
  const PieceSink word = [&](std::string_view piece) {
    bpe_.encode(piece, scratch, ids);
    return Status();
  };
  return normalized_tokens_.find(text, ids, [&](std::string_view piece) {
    // cppcheck-suppress invalidLifetime  ; the text is the caller's, and outlives this
    return pretokenizer_.split(piece, first && piece.data() == text.data(), word);
  });
}

}  // namespace kvlane
