// What tokenizer_config.json says about a tokenizer.model beside it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/added_tokens.h"

namespace kvlane {

struct SentencePieceConfig {
  bool add_bos = true;
  bool add_eos = false;
  // In the order of their ids: of tokens that the model may not have, and of some that it has.
  std::vector<AddedToken> added_tokens;
};

// Reads "add_bos_token", "add_eos_token" and "added_tokens_decoder"; what is absent has the value
// that transformers' LlamaTokenizer gives it. kCorrupt or kUnsupported with the name of the field.
Result<SentencePieceConfig> parse_sentencepiece_config(std::string_view tokenizer_config_json);

}  // namespace kvlane
