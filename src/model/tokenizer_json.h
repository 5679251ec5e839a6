// tokenizer.json, read and checked: what a byte-level BPE tokenizer is made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/vocabulary.h"

namespace kvlane {

// Largest file taken. Those of Llama 3 and Qwen3 have 7 to 17 MB.
inline constexpr std::size_t kTokenizerJsonBytesMax = 64U << 20;
// Most merges taken; Llama 3 has 280,147.
inline constexpr std::size_t kMergesMax = 4U << 20;
// Most added tokens; Llama 3 has 256.
inline constexpr std::size_t kAddedTokensMax = 64U << 10;
// Longest added token in bytes; bounds what the search for them costs at each place of a text.
inline constexpr std::size_t kAddedTokenBytesMax = 1024;
// Most pre-tokenizers, and post-processors, one after another. Known files have two.
inline constexpr std::size_t kStepsMax = 16;
// Most tokens that post-processors put around a text.
inline constexpr std::size_t kTemplateTokensMax = 1024;

// A token that is recognised in the text itself, before any splitting.
struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool special = false;     // left out by decode()
  bool normalized = false;  // searched for after normalisation instead of before
  bool strip_left = false;  // takes the white space before it along
  bool strip_right = false;
};

struct TokenizerSpec {
  Vocabulary vocabulary;  // added tokens included
  std::vector<Bpe::Merge> merges;
  Bpe::Options bpe;
  std::vector<AddedToken> added_tokens;
  bool nfc = false;  // text is normalised to form C
  Pretokenizer::Options pretokenizer;
  // What the post-processor puts around a text.
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
};

// kCorrupt for what is no tokenizer.json; kUnsupported names a construct that kvlane does not do.
Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

}  // namespace kvlane
