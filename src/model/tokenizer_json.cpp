// The parts of tokenizer.json one by one; what they mean follows the `tokenizers` package, 0.23.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "model/byte_alphabet.h"
#include "model/nfc.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
// Ids by token as the file spells it. The keys belong to the JSON document.
using IdsByText = std::unordered_map<std::string_view, std::int32_t>;

// The field `name` of `object`; null (a JSON value) when it is absent or `object` is none.
const Json& field(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto at = object.find(name);
  return at == object.end() ? kNull : *at;
}

// A value from the file for an error message: short, whatever it is.
std::string quoted(const Json& value) {
  constexpr std::size_t kBytesMax = 60;
  const std::string text = value.dump(-1, ' ', true);  // ASCII, so that a cut is never inside one
  return text.size() <= kBytesMax ? text : text.substr(0, kBytesMax) + "...";
}

std::string type_of(const Json& part) {
  const Json& type = field(part, "type");
  return type.is_string() ? type.get<std::string>() : quoted(part);
}

Status refuse(std::string_view kind, const Json& part) {
  return unsupported("the " + std::string(kind) + " " + quoted(Json(type_of(part))) +
                     " is not supported");
}

Result<bool> flag(const Json& object, const char* name,
                  std::optional<bool> fallback = std::nullopt) {
  const Json& value = field(object, name);
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_null() && fallback) return *fallback;
  return corrupt(std::string("'") + name + "' is " + quoted(value) + " instead of true or false");
}

Result<std::int32_t> token_id(const Json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kTokenIdsMax) {
    return corrupt("token id " + quoted(value) + " is not a whole number below " +
                   std::to_string(kTokenIdsMax));
  }
  return value.get<std::int32_t>();
}

// ---- model ----

Result<IdsByText> parse_vocabulary(const Json& model, TokenizerSpec& spec) {
  const Json& vocabulary = field(model, "vocab");
  if (!vocabulary.is_object()) return corrupt("'vocab' of the model is not an object");
  IdsByText ids;
  ids.reserve(vocabulary.size());
  for (auto at = vocabulary.begin(); at != vocabulary.end(); ++at) {
    const std::string& text = at.key();
    KVLANE_ASSIGN(const std::int32_t id, token_id(at.value()));
    // Only what is spelt in the alphabet can come out of a merge.
    const std::optional<std::string> bytes = bytes_of_byte_level(text);
    KVLANE_TRY(spec.vocabulary.add(id, bytes ? *bytes : text, bytes.has_value()));
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
  // "unk_token", "fuse_unk" and "byte_fallback" are for characters without a token: Bpe::create
  // makes sure that there are none.
  KVLANE_ASSIGN(spec.bpe.whole_words_first, flag(model, "ignore_merges", false));
  KVLANE_ASSIGN(IdsByText ids, parse_vocabulary(model, spec));
  KVLANE_TRY(parse_merges(model, ids, spec));
  return ids;
}

// ---- added tokens ----

Result<AddedToken> parse_added_token(const Json& item, bool nfc) {
  AddedToken token;
  const Json& content = field(item, "content");
  if (!content.is_string()) return corrupt("the added token " + quoted(item) + " has no content");
  token.content = content.get<std::string>();
  if (token.content.empty() || token.content.size() > kAddedTokenBytesMax) {
    return unsupported("an added token of " + std::to_string(token.content.size()) +
                       " bytes; kvlane takes 1 to " + std::to_string(kAddedTokenBytesMax));
  }
  KVLANE_ASSIGN(token.id, token_id(field(item, "id")));
  KVLANE_ASSIGN(token.special, flag(item, "special"));
  KVLANE_ASSIGN(token.normalized, flag(item, "normalized"));
  KVLANE_ASSIGN(token.strip_left, flag(item, "lstrip"));
  KVLANE_ASSIGN(token.strip_right, flag(item, "rstrip"));
  KVLANE_ASSIGN(const bool single_word, flag(item, "single_word"));
  if (single_word) {
    return unsupported("the added token " + quoted(content) +
                       " is 'single_word', which is not supported");
  }
  if (token.normalized && nfc) {
    KVLANE_ASSIGN(const std::string normal, to_nfc(token.content));
    if (normal != token.content) {
      return unsupported("the added token " + quoted(content) + " is not in normalisation form C");
    }
  }
  return token;
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
    KVLANE_ASSIGN(AddedToken token, parse_added_token(item, spec.nfc));
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
      // The decoder reads every token as byte-level that can be read so, added ones as well.
      const std::optional<std::string> bytes = bytes_of_byte_level(token.content);
      const bool spelt = bytes && !token.special;
      KVLANE_TRY(spec.vocabulary.add(token.id, spelt ? *bytes : token.content, false));
    }
    spec.added_tokens.push_back(std::move(token));
  }
  return {};
}

// ---- normaliser, pre-tokeniser, post-processor, decoder ----

Status parse_normalizer(const Json& normalizer, TokenizerSpec& spec) {
  if (normalizer.is_null()) return {};
  if (type_of(normalizer) != "NFC") return refuse("normalizer", normalizer);
  spec.nfc = true;
  return {};
}

Status add_split(const Json& part, TokenizerSpec& spec) {
  const Json& pattern = field(field(part, "pattern"), "Regex");
  if (!pattern.is_string()) {
    return unsupported("the pattern " + quoted(field(part, "pattern")) +
                       " of a pre_tokenizer 'Split' is not a Regex");
  }
  const Json& behavior = field(part, "behavior");
  if (behavior != "Isolated") {
    return unsupported("the behavior " + quoted(behavior) +
                       " of a pre_tokenizer 'Split' is not supported");
  }
  KVLANE_ASSIGN(const bool invert, flag(part, "invert"));
  if (invert) return unsupported("a pre_tokenizer 'Split' with 'invert' is not supported");
  KVLANE_ASSIGN(SplitRule rule, SplitRule::compile(pattern.get_ref<const std::string&>()));
  spec.pretokenizer.rules.push_back(std::move(rule));
  return {};
}

Status add_byte_level(const Json& part, TokenizerSpec& spec) {
  KVLANE_ASSIGN(spec.pretokenizer.prefix_space, flag(part, "add_prefix_space"));
  KVLANE_ASSIGN(const bool use_regex, flag(part, "use_regex", true));
  spec.pretokenizer.rules_before_prefix = spec.pretokenizer.rules.size();
  if (!use_regex) return {};
  KVLANE_ASSIGN(SplitRule rule, SplitRule::compile(kByteLevelRule));
  spec.pretokenizer.rules.push_back(std::move(rule));
  return {};
}

// The steps of a "Sequence", or the one step that `part` is.
Result<std::vector<const Json*>> steps_of(const Json& part, const char* list,
                                          std::string_view kind) {
  std::vector<const Json*> steps;
  if (type_of(part) != "Sequence") {
    steps.push_back(&part);
    return steps;
  }
  const Json& items = field(part, list);
  if (!items.is_array()) return corrupt("the " + std::string(kind) + " 'Sequence' has no list");
  if (items.size() > kStepsMax) {
    return unsupported("the " + std::string(kind) + " has " + std::to_string(items.size()) +
                       " steps; kvlane takes up to " + std::to_string(kStepsMax));
  }
  for (const Json& item : items) steps.push_back(&item);
  return steps;
}

Status parse_pretokenizer(const Json& part, TokenizerSpec& spec) {
  if (part.is_null()) return unsupported("a tokenizer without pre_tokenizer is not byte-level");
  KVLANE_ASSIGN(const auto steps, steps_of(part, "pretokenizers", "pre_tokenizer"));
  bool byte_level = false;
  for (const Json* step : steps) {
    const std::string type = type_of(*step);
    // After it, text is spelt in another alphabet.
    if (byte_level) return unsupported("a pre_tokenizer after 'ByteLevel' is not supported");
    if (type == "Split") {
      KVLANE_TRY(add_split(*step, spec));
    } else if (type == "ByteLevel") {
      KVLANE_TRY(add_byte_level(*step, spec));
      byte_level = true;
    } else {
      return refuse("pre_tokenizer", *step);
    }
  }
  return byte_level ? Status() : unsupported("the pre_tokenizer has no step 'ByteLevel'");
}

// The ids of a special token in a template.
Result<std::vector<std::int32_t>> template_ids(const Json& processor, const Json& piece) {
  const Json& name = field(piece, "id");
  if (!name.is_string()) return corrupt("the template piece " + quoted(piece) + " has no id");
  const Json& items = field(
      field(field(processor, "special_tokens"), name.get_ref<const std::string&>().c_str()), "ids");
  if (!items.is_array()) return corrupt("the template token " + quoted(name) + " has no ids");
  if (items.size() > kTemplateTokensMax)
    return unsupported("the template token " + quoted(name) + " has too many ids");
  std::vector<std::int32_t> ids;
  for (const Json& item : items) {
    KVLANE_ASSIGN(const std::int32_t id, token_id(item));
    ids.push_back(id);
  }
  return ids;
}

Status add_template(const Json& processor, TokenizerSpec& spec) {
  const Json& pieces = field(processor, "single");
  if (!pieces.is_array()) return corrupt("the post_processor 'TemplateProcessing' has no 'single'");
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
  int texts = 0;
  for (const Json& piece : pieces) {
    if (const Json& sequence = field(piece, "Sequence"); !sequence.is_null()) {
      if (field(sequence, "id") != "A") return refuse("template piece", piece);
      ++texts;
      continue;
    }
    const Json& special = field(piece, "SpecialToken");
    if (special.is_null()) return refuse("template piece", piece);
    KVLANE_ASSIGN(const std::vector<std::int32_t> ids, template_ids(processor, special));
    std::vector<std::int32_t>& side = texts == 0 ? before : after;
    side.insert(side.end(), ids.begin(), ids.end());
    if (side.size() > kTemplateTokensMax) return unsupported("a template with too many tokens");
  }
  if (texts != 1) return unsupported("a template that does not hold the text once");
  spec.prefix.insert(spec.prefix.begin(), before.begin(), before.end());
  spec.suffix.insert(spec.suffix.end(), after.begin(), after.end());
  return {};
}

Status parse_post_processor(const Json& part, TokenizerSpec& spec) {
  if (part.is_null()) return {};
  KVLANE_ASSIGN(const auto steps, steps_of(part, "processors", "post_processor"));
  for (const Json* step : steps) {
    const std::string type = type_of(*step);
    if (type == "TemplateProcessing") {
      KVLANE_TRY(add_template(*step, spec));
    } else if (type != "ByteLevel") {  // that one moves offsets, not ids
      return refuse("post_processor", *step);
    }
  }
  for (const std::vector<std::int32_t>* side : {&spec.prefix, &spec.suffix}) {
    for (const std::int32_t id : *side) {
      if (spec.vocabulary.contains(id)) continue;
      return corrupt("the template token id " + std::to_string(id) + " is not in the vocabulary");
    }
  }
  return {};
}

Result<TokenizerSpec> parse_document(const Json& document) {
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
  KVLANE_TRY(parse_normalizer(field(document, "normalizer"), spec));
  KVLANE_ASSIGN(IdsByText ids, parse_model(field(document, "model"), spec));
  KVLANE_TRY(parse_added_tokens(field(document, "added_tokens"), ids, spec));
  KVLANE_TRY(parse_pretokenizer(field(document, "pre_tokenizer"), spec));
  KVLANE_TRY(parse_post_processor(field(document, "post_processor"), spec));
  const Json& decoder = field(document, "decoder");
  if (type_of(decoder) != "ByteLevel") return refuse("decoder", decoder);
  return spec;
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text) {
  if (text.size() > kTokenizerJsonBytesMax) {
    return unsupported("a tokenizer.json of " + std::to_string(text.size()) +
                       " bytes; kvlane takes up to " + std::to_string(kTokenizerJsonBytesMax));
  }
  try {
    return parse_document(Json::parse(text));
  } catch (const Json::parse_error& error) {
    return corrupt("it is not valid JSON (byte " + std::to_string(error.byte) + ")");
  } catch (const Json::out_of_range&) {
    return corrupt("it holds a number that is out of range");  // 6e411
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory for its " + std::to_string(text.size()) + " bytes");
  }
}

}  // namespace kvlane
