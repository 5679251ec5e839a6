// Model and added tokens of tokenizer.json; what they mean follows the `tokenizers` package, 0.23.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "model/byte_alphabet.h"
#include "model/tokenizer_fields.h"
#include "model/tokenizer_steps.h"

namespace kvlane {
namespace {

using tokenizer_fields::check_added_token;
using tokenizer_fields::field;
using tokenizer_fields::flag;
using tokenizer_fields::Json;
using tokenizer_fields::parse_added_token;
using tokenizer_fields::quoted;
using tokenizer_fields::refuse;
using tokenizer_fields::token_id;
using tokenizer_fields::type_of;

// Ids by token as the file spells it. The keys belong to the JSON document.
using IdsByText = std::unordered_map<std::string_view, std::int32_t>;

// ---- model ----

Result<IdsByText> parse_vocabulary(const Json& model, TokenizerSpec& spec) {
  const Json& vocabulary = field(model, "vocab");
  if (!vocabulary.is_object()) return corrupt("'vocab' of the model is not an object");
  IdsByText ids;
  ids.reserve(vocabulary.size());
  for (auto at = vocabulary.begin(); at != vocabulary.end(); ++at) {
    const std::string& text = at.key();
    KVLANE_ASSIGN(const std::int32_t id, token_id(at.value()));
    if (spec.bpe.unit == Bpe::Unit::kByte) {
      // Only what is spelt in the alphabet can come out of a merge.
      const std::optional<std::string> bytes = bytes_of_byte_level(text);
      KVLANE_TRY(spec.parts.vocabulary.add(id, bytes ? *bytes : text, bytes.has_value()));
    } else {
      KVLANE_TRY(spec.parts.vocabulary.add(id, text, true));
    }
    ids.emplace(text, id);
  }
  return ids;
}

// The two sides of a merge: "a b", or ["a", "b"] where tokens may hold spaces.
Result<std::pair<std::string_view, std::string_view>> merge_sides(const Json& merge) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  }
  return corrupt("the merge " + quoted(merge) + " is not two tokens");
}

Status parse_merges(const Json& model, const IdsByText& ids, TokenizerSpec& spec) {
  const Json& merges = field(model, "merges");
  if (!merges.is_array()) return corrupt("'merges' of the model is not a list");
  if (merges.size() > kMergesMax) {
    return unsupported(std::to_string(merges.size()) + " merges are more than " +
                       std::to_string(kMergesMax));
  }
  spec.merges.reserve(merges.size());
  std::string joined;
  for (const Json& merge : merges) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    KVLANE_ASSIGN(const auto sides, merge_sides(merge));
    joined.assign(sides.first).append(sides.second);
    const auto left = ids.find(sides.first);
    const auto right = ids.find(sides.second);
    const auto merged = ids.find(joined);
    if (left == ids.end() || right == ids.end() || merged == ids.end()) {
      return corrupt("the merge " + quoted(merge) + " has a token that is not in the vocabulary");
    }
    spec.merges.push_back({left->second, right->second, merged->second});
  }
  return {};
}

// What characters without a token become; byte-level vocabularies have none such.
Status parse_unknown(const Json& model, const IdsByText& ids, TokenizerSpec& spec) {
  KVLANE_ASSIGN(spec.bpe.byte_fallback, flag(model, "byte_fallback", false));
  KVLANE_ASSIGN(spec.bpe.fuse_unknown, flag(model, "fuse_unk", false));
  const Json& unknown = field(model, "unk_token");
  if (unknown.is_null()) return {};
  const auto known =
      unknown.is_string() ? ids.find(unknown.get_ref<const std::string&>()) : ids.end();
  if (known == ids.end()) {
    return corrupt("the unk_token " + quoted(unknown) + " is not in the vocabulary");
  }
  spec.bpe.unknown = known->second;
  return {};
}

Result<IdsByText> parse_model(const Json& model, TokenizerSpec& spec) {
  if (!model.is_object()) return corrupt("there is no 'model'");
  // Old files do not say the type.
  if (!field(model, "type").is_null() && type_of(model) != "BPE") return refuse("model", model);
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& affix = field(model, name);
    if (!affix.is_null() && affix != "") {
      return unsupported(std::string("the ") + name + " " + quoted(affix) + " is not supported");
    }
  }
  const Json& dropout = field(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return unsupported("the dropout " + quoted(dropout) + " is not supported");
  }
  KVLANE_ASSIGN(spec.bpe.whole_words_first, flag(model, "ignore_merges", false));
  KVLANE_ASSIGN(IdsByText ids, parse_vocabulary(model, spec));
  if (spec.bpe.unit == Bpe::Unit::kCharacter) KVLANE_TRY(parse_unknown(model, ids, spec));
  KVLANE_TRY(parse_merges(model, ids, spec));
  return ids;
}

// ---- added tokens ----

// What is searched for is what normalisation makes of the content, if the text is normalised first.
Status normalize_pattern(const TextNormalizer& normalizer, AddedToken& token) {
  if (!token.normalized) return {};
  KVLANE_ASSIGN(token.pattern, normalizer.apply(token.content));
  return check_added_token(token.pattern);
}

// The package gives an added token the id of the vocabulary entry with its content, else the next
// one after the vocabulary and the added tokens before it; the id in the file is a comment to it.
// kvlane takes files where both agree.
Status parse_added_tokens(const Json& items, IdsByText& ids, TokenizerSpec& spec) {
  if (items.is_null()) return {};
  if (!items.is_array()) return corrupt("'added_tokens' is not a list");
  if (items.size() > kAddedTokensMax) {
    return unsupported(std::to_string(items.size()) + " added tokens are more than " +
                       std::to_string(kAddedTokensMax));
  }
  std::unordered_map<std::string_view, bool> seen;
  auto next = static_cast<std::int32_t>(ids.size());
  for (const Json& item : items) {
    KVLANE_ASSIGN(AddedToken token, parse_added_token(item));
    KVLANE_ASSIGN(token.id, token_id(field(item, "id")));
    KVLANE_TRY(normalize_pattern(spec.normalizer, token));
    const Json& content = item["content"];
    if (!seen.emplace(content.get_ref<const std::string&>(), true).second) {
      return corrupt("the added token " + quoted(content) + " is there twice");
    }
    const auto known = ids.find(token.content);
    const std::int32_t given = known == ids.end() ? next++ : known->second;
    if (given != token.id) {
      return unsupported("the added token " + quoted(content) + " has id " +
                         std::to_string(token.id) + ", where the tokenizers package gives it " +
                         std::to_string(given));
    }
    if (known == ids.end()) {
      // The package decodes an ordinary one as it is searched for. A byte-level decoder reads every
      // token as byte-level that can be read so, added ones as well.
      const std::string& text = token.special ? token.content : token.pattern;
      const bool byte_level = spec.bpe.unit == Bpe::Unit::kByte && !token.special;
      const std::optional<std::string> bytes =
          byte_level ? bytes_of_byte_level(text) : std::nullopt;
      KVLANE_TRY(spec.parts.vocabulary.add(token.id, bytes ? *bytes : text, false));
    }
    spec.parts.added_tokens.push_back(std::move(token));
  }
  return {};
}

Result<TokenizerSpec> parse_tokenizer_document(const Json& document) {
  if (!document.is_object()) return corrupt("it is not a JSON object");
  const Json& version = field(document, "version");
  if (!version.is_null() && version != "1.0") {
    return unsupported("version " + quoted(version) + " is not supported");
  }
  for (const char* name : {"truncation", "padding"}) {
    if (!field(document, name).is_null()) {
      return unsupported(std::string("'") + name + "' is not supported");
    }
  }
  TokenizerSpec spec;
  KVLANE_ASSIGN(PretokenizerSteps pretokenizer,
                parse_pretokenizer(field(document, "pre_tokenizer")));
  spec.bpe.unit = pretokenizer.byte_level ? Bpe::Unit::kByte : Bpe::Unit::kCharacter;
  spec.pretokenizer = std::move(pretokenizer.list);
  KVLANE_ASSIGN(spec.normalizer, parse_normalizer(field(document, "normalizer")));
  KVLANE_ASSIGN(spec.parts.decoder,
                parse_decoder(field(document, "decoder"), pretokenizer.byte_level));
  KVLANE_ASSIGN(IdsByText ids, parse_model(field(document, "model"), spec));
  KVLANE_TRY(parse_added_tokens(field(document, "added_tokens"), ids, spec));
  KVLANE_TRY(parse_post_processor(field(document, "post_processor"), spec.parts));
  return spec;
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text) {
  TokenizerSpec spec;
  KVLANE_TRY(tokenizer_fields::read_document(text, [&](const Json& document) -> Status {
    KVLANE_ASSIGN(spec, parse_tokenizer_document(document));
    return {};
  }));
  return spec;
}

}  // namespace kvlane
