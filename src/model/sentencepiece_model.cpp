// What the library throws or says ends here, as a status.
// SPDX-License-Identifier: Apache-2.0
#include "model/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "model/sentencepiece_proto.h"

namespace kvlane {
namespace {

// The mark that stands for a space in pieces, U+2581.
constexpr std::string_view kMark = "\u2581";

class SentencePieceEncoder final : public TextEncoder {
 public:
  explicit SentencePieceEncoder(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}

  Status encode(std::string_view text, bool /*first*/,
                std::vector<std::int32_t>& ids) const override {
    std::vector<int> pieces;
    const sentencepiece::util::Status status = processor_->Encode(text, &pieces);
    if (!status.ok()) return internal_error("sentencepiece: " + status.ToString());
    ids.insert(ids.end(), pieces.begin(), pieces.end());
    return {};
  }

 private:
  std::unique_ptr<const sentencepiece::SentencePieceProcessor> processor_;
};

// `listed`: tokenizer_config.json has it as well, with flags of its own.
Status add_piece(const sentencepiece::SentencePieceProcessor& processor, std::int32_t id,
                 const SentencePieceFacts& facts, bool listed, TokenizerParts& parts) {
  if (processor.IsUnknown(id)) return parts.vocabulary.add(id, facts.unk_surface, false);
  const std::string& piece = processor.IdToPiece(id);
  if (processor.IsControl(id)) {
    if (!listed) {
      parts.added_tokens.push_back({.id = id, .content = piece, .pattern = piece, .special = true});
    }
    return parts.vocabulary.add(id, piece, false);
  }
  return parts.vocabulary.add(id, piece, true);
}

// A token of tokenizer_config.json: one more, or one of the model's.
Status add_token(const sentencepiece::SentencePieceProcessor& processor, AddedToken token,
                 TokenizerParts& parts) {
  token.normalized = false;  // there is no normalisation
  if (token.id >= processor.GetPieceSize()) {
    KVLANE_TRY(parts.vocabulary.add(token.id, token.content, false));
  } else if (const std::string& piece = processor.IdToPiece(token.id); piece != token.content) {
    return unsupported("tokenizer_config.json calls token " + std::to_string(token.id) + " '" +
                       token.content + "', the model '" + piece + "'");
  }
  parts.added_tokens.push_back(std::move(token));
  return {};
}

Result<SentencePieceSpec> load(std::string_view model, const SentencePieceFacts& facts,
                               const SentencePieceConfig& config) {
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  if (const auto status = processor->LoadFromSerializedProto(model); !status.ok()) {
    return corrupt("sentencepiece does not load it: " + status.ToString());
  }
  SentencePieceSpec spec;
  for (std::int32_t id = 0; id < processor->GetPieceSize(); ++id) {
    const bool listed = std::ranges::binary_search(config.added_tokens, id, {}, &AddedToken::id);
    KVLANE_TRY(add_piece(*processor, id, facts, listed, spec.parts));
  }
  for (const AddedToken& token : config.added_tokens) {
    KVLANE_TRY(add_token(*processor, token, spec.parts));
  }
  spec.parts.decoder.replacements.push_back({std::string(kMark), " "});
  spec.parts.decoder.byte_fallback = true;
  if (facts.remove_extra_whitespaces) {
    spec.parts.decoder.spaces_stripped_max = std::numeric_limits<int>::max();
  } else if (facts.add_dummy_prefix) {
    spec.parts.decoder.spaces_stripped_max = 1;
  }
  if (config.add_bos && processor->bos_id() >= 0) spec.parts.prefix = {processor->bos_id()};
  if (config.add_eos && processor->eos_id() >= 0) spec.parts.suffix = {processor->eos_id()};
  spec.encoder = std::make_unique<SentencePieceEncoder>(std::move(processor));
  return spec;
}

}  // namespace

Result<SentencePieceSpec> parse_sentencepiece_model(std::string_view model,
                                                    const SentencePieceConfig& config) {
  KVLANE_ASSIGN(const SentencePieceFacts facts, read_sentencepiece_facts(model));
  try {
    return load(model, facts, config);
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory for its " + std::to_string(model.size()) + " bytes");
  } catch (const std::exception& error) {
    return corrupt(std::string("sentencepiece does not load it: ") + error.what());
  }
}

}  // namespace kvlane
