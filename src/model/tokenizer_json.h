// tokenizer.json, read and checked: what a BPE tokenizer is made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/text_normalizer.h"
#include "model/tokenizer_parts.h"

namespace kvlane {

// Most merges taken; Llama 3 has 280,147.
inline constexpr std::size_t kMergesMax = 4U << 20;

struct TokenizerSpec {
  TokenizerParts parts;
  std::vector<Bpe::Merge> merges;
  Bpe::Options bpe;
  TextNormalizer normalizer;
  std::vector<Pretokenizer::Step> pretokenizer;
};

// kCorrupt for what is no tokenizer.json; kUnsupported names a construct that kvlane does not do.
Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

}  // namespace kvlane
