// Three fields, read like those of tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#include "model/sentencepiece_config.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer_fields.h"
#include "model/tokenizer_parts.h"

namespace kvlane {
namespace {

using tokenizer_fields::field;
using tokenizer_fields::flag;
using tokenizer_fields::Json;
using tokenizer_fields::parse_added_token;
using tokenizer_fields::quoted;

Result<std::int32_t> id_of_key(const std::string& key) {
  std::int32_t id = -1;
  const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || stop != key.data() + key.size() || id < 0 || id >= kTokenIdsMax) {
    return corrupt("'added_tokens_decoder' has the token id " + quoted(Json(key)));
  }
  return id;
}

Result<SentencePieceConfig> parse_sentencepiece_document(const Json& document) {
  SentencePieceConfig config;
  KVLANE_ASSIGN(config.add_bos, flag(document, "add_bos_token", true));
  KVLANE_ASSIGN(config.add_eos, flag(document, "add_eos_token", false));
  const Json& tokens = field(document, "added_tokens_decoder");
  if (tokens.is_null()) return config;
  if (!tokens.is_object()) return corrupt("'added_tokens_decoder' is not an object");
  if (tokens.size() > kAddedTokensMax) {
    return unsupported(std::to_string(tokens.size()) + " added tokens are more than " +
                       std::to_string(kAddedTokensMax));
  }
  for (auto at = tokens.begin(); at != tokens.end(); ++at) {
    KVLANE_ASSIGN(AddedToken token, parse_added_token(at.value()));
    KVLANE_ASSIGN(token.id, id_of_key(at.key()));
    config.added_tokens.push_back(std::move(token));
  }
  std::sort(config.added_tokens.begin(), config.added_tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return config;
}

}  // namespace

Result<SentencePieceConfig> parse_sentencepiece_config(std::string_view tokenizer_config_json) {
  SentencePieceConfig config;
  KVLANE_TRY(
      tokenizer_fields::read_document(tokenizer_config_json, [&](const Json& document) -> Status {
        KVLANE_ASSIGN(config, parse_sentencepiece_document(document));
        return {};
      }));
  return config;
}

}  // namespace kvlane
