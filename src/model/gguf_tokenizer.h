// The tokenizer of a GGUF file, in the words of tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "kvlane/status.h"
#include "model/gguf.h"

namespace kvlane {

// "tokenizer.ggml.model" is "llama" (sentencepiece's BPE, whose merges follow from scores) or
// "gpt2" with "tokenizer.ggml.pre" "gpt-2", "llama-bpe", "qwen2" or "falcon". What comes out is for
// Tokenizer::parse(). Tokens of Phi-3 ("phi3" with "llama") take the spaces behind them along,
// which no entry says. kUnsupported names others; kCorrupt what is missing or contradicts.
Result<std::string> gguf_tokenizer_json(const GgufFile& file);

// What chats need.
struct GgufChat {
  std::string source;                         // of the template; empty where the file has none
  std::map<std::string, std::string> tokens;  // texts by their names in templates: "bos_token"
};

Result<GgufChat> gguf_chat(const GgufFile& file);

}  // namespace kvlane
