// vocab.json and merges.txt, the files of older tokenizers of bytes (OPT, GPT-2), in the words of
// tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// What transformers makes of them, for Tokenizer::parse(): `tokenizer_config_json` names special
// tokens and says whether a BOS is put before a text and a space before its first word; with an
// empty one neither is. kUnsupported names a "tokenizer_class" that is not GPT-2's, whose texts
// might be split by another rule; kCorrupt the line of a merge that is none.
Result<std::string> gpt2_tokenizer_json(std::string_view vocab_json, std::string_view merges,
                                        std::string_view tokenizer_config_json);

}  // namespace kvlane
