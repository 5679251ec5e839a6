// The encoder of tokenizer.json: normalisation, splitting, merging.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/text_encoder.h"
#include "model/text_normalizer.h"

namespace kvlane {

class BpeEncoder final : public TextEncoder {
 public:
  // `normalized_tokens`: the added tokens that are searched for after normalisation.
  BpeEncoder(TextNormalizer normalizer, std::vector<AddedToken> normalized_tokens,
             Pretokenizer pretokenizer, Bpe bpe)
      : normalizer_(std::move(normalizer)),
        normalized_tokens_(std::move(normalized_tokens)),
        pretokenizer_(std::move(pretokenizer)),
        bpe_(std::move(bpe)) {}

  Status encode(std::string_view text, bool first, std::vector<std::int32_t>& ids) const override;

 private:
  Status encode_normalized(std::string_view text, bool first, std::vector<std::int32_t>& ids) const;

  TextNormalizer normalizer_;
  AddedTokenFinder normalized_tokens_;
  Pretokenizer pretokenizer_;
  Bpe bpe_;
};

}  // namespace kvlane
