// Normalizer, pre-tokenizer, post-processor and decoder of tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kvlane/status.h"
#include "model/pretokenizer.h"
#include "model/text_normalizer.h"
#include "model/tokenizer_parts.h"

namespace kvlane {

struct PretokenizerSteps {
  std::vector<Pretokenizer::Step> list;
  bool byte_level = false;  // one is "ByteLevel"
  bool metaspace = false;   // one is "Metaspace"
};

// Each takes the part of the document, which may be null, and follows the `tokenizers` package,
// 0.23. kCorrupt for what is none; kUnsupported names what kvlane does not do.
Result<TextNormalizer> parse_normalizer(const nlohmann::json& part);
Result<PretokenizerSteps> parse_pretokenizer(const nlohmann::json& part);
// Fills what is put around a text; the vocabulary must be complete.
Status parse_post_processor(const nlohmann::json& part, TokenizerParts& parts);
// `byte_level`: whether words are bytes.
Result<DecoderOptions> parse_decoder(const nlohmann::json& part, bool byte_level);

}  // namespace kvlane
