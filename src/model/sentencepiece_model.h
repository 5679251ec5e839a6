// tokenizer.model of a checkpoint: a BPE model that the sentencepiece library runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "kvlane/status.h"
#include "model/text_encoder.h"
#include "model/tokenizer_parts.h"

namespace kvlane {

struct SentencePieceSpec {
  TokenizerParts parts;
  std::unique_ptr<const TextEncoder> encoder;
};

// Control tokens become special added tokens, BOS the prefix. kCorrupt for what is no model;
// kUnsupported names what kvlane does not do (model/sentencepiece_proto.h).
Result<SentencePieceSpec> parse_sentencepiece_model(std::string_view model);

}  // namespace kvlane
