// tokenizer.model of a checkpoint: a BPE model that the sentencepiece library runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "kvlane/status.h"
#include "model/sentencepiece_config.h"
#include "model/text_encoder.h"
#include "model/tokenizer_parts.h"

namespace kvlane {

struct SentencePieceSpec {
  TokenizerParts parts;
  std::unique_ptr<const TextEncoder> encoder;
};

// Control tokens become special added tokens, and of the tokens of `config` those that the model
// does not have are added to it; BOS and EOS are put around texts as `config` says. kCorrupt for
// what is no model; kUnsupported names what kvlane does not do (model/sentencepiece_proto.h).
Result<SentencePieceSpec> parse_sentencepiece_model(std::string_view model,
                                                    const SentencePieceConfig& config);

}  // namespace kvlane
