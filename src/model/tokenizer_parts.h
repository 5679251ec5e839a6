// What every kind of tokenizer is made of, but for the encoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/added_tokens.h"
#include "model/detokenizer.h"
#include "model/vocabulary.h"

namespace kvlane {

// Largest file taken. tokenizer.json of Llama 3 and Qwen3 has 7 to 17 MB, tokenizer.model of
// Llama 2 0.5 MB.
inline constexpr std::size_t kTokenizerBytesMax = 64U << 20;
// Longest added token, and piece of tokenizer.model, in bytes; bounds what the search for them
// costs at each place of a text.
inline constexpr std::size_t kAddedTokenBytesMax = 1024;
// Most added tokens; Llama 3 has 256.
inline constexpr std::size_t kAddedTokensMax = 64U << 10;

struct TokenizerParts {
  Vocabulary vocabulary;  // added tokens included; bytes, or what the decoder makes bytes of
  std::vector<AddedToken> added_tokens;
  DecoderOptions decoder;
  // What is put around a text.
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
};

}  // namespace kvlane
