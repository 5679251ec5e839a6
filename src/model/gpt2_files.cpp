// The steps are those of every GPT-2; files and special tokens are put between them.
// SPDX-License-Identifier: Apache-2.0
#include "model/gpt2_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/tokenizer_fields.h"

namespace kvlane {
namespace {

using tokenizer_fields::field;
using tokenizer_fields::flag;
using tokenizer_fields::Json;
using tokenizer_fields::quoted;

constexpr const char* kGpt2SpecialTokens[] = {"bos_token", "eos_token", "unk_token", "pad_token"};

// Pairs, the first to merge first, behind a line with the version.
Result<Json> read_merges(std::string_view text) {
  Json merges = Json::array();
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != line.npos) {
      return corrupt("line " + std::to_string(number) + " of merges.txt is no pair of tokens");
    }
    merges.push_back(Json::array({line.substr(0, space), line.substr(space + 1)}));
  }
  return merges;
}

// The text of a special token, "..." or {"content": "..."}; empty when there is none.
Result<std::string> gpt2_special_token(const Json& config, const char* name) {
  const Json& token = field(config, name);
  const Json& text = token.is_object() ? field(token, "content") : token;
  if (text.is_null()) return std::string();
  if (text.is_string()) return text.get<std::string>();
  return corrupt(std::string("'") + name + "' is not the text of a token");
}

Status check_class(const Json& config) {
  const Json& name = field(config, "tokenizer_class");
  if (name.is_null() || name == "GPT2Tokenizer" || name == "GPT2TokenizerFast") return {};
  return unsupported("its tokenizer is a " + quoted(name) +
                     ", which kvlane reads from tokenizer.json alone");
}

Status add_special_tokens(const Json& config, Json& json) {
  Json& vocabulary = json["model"]["vocab"];
  Json& added = json["added_tokens"] = Json::array();
  for (const char* const name : kGpt2SpecialTokens) {
    KVLANE_ASSIGN(const std::string text, gpt2_special_token(config, name));
    if (text.empty()) continue;
    const auto id = vocabulary.find(text);
    if (id == vocabulary.end()) {
      return unsupported("vocab.json has no " + quoted(Json(text)) + ", which is the " + name);
    }
    const auto same = [&](const Json& other) { return other["content"] == text; };
    if (std::any_of(added.begin(), added.end(), same)) continue;
    added.push_back({{"id", *id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", true},
                     {"special", true}});
  }
  KVLANE_ASSIGN(const bool bos, flag(config, "add_bos_token", false));
  if (!bos) return {};
  KVLANE_ASSIGN(const std::string text, gpt2_special_token(config, "bos_token"));
  if (text.empty()) return corrupt("'add_bos_token' is true and there is no 'bos_token'");
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", text}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{text, {{"id", text}, {"ids", {vocabulary[text]}}}}}}};
  return {};
}

}  // namespace

Result<std::string> gpt2_tokenizer_json(std::string_view vocab_json, std::string_view merges,
                                        std::string_view tokenizer_config_json) {
  Json json = {{"version", "1.0"},
               {"model", {{"type", "BPE"}, {"vocab", Json::object()}}},
               {"decoder", {{"type", "ByteLevel"}}}};
  const auto read_vocabulary = [&](const Json& vocabulary) -> Status {
    if (!vocabulary.is_object()) return corrupt("it is not a JSON object");
    json["model"]["vocab"] = vocabulary;
    return {};
  };
  const auto read_config = [&](const Json& config) -> Status {
    KVLANE_TRY(check_class(config));
    KVLANE_ASSIGN(const bool space, flag(config, "add_prefix_space", false));
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", space}};
    return add_special_tokens(config, json);
  };
  const std::string_view config_json = tokenizer_config_json.empty() ? "{}" : tokenizer_config_json;
  KVLANE_TRY(
      tokenizer_fields::read_document(vocab_json, read_vocabulary).with_context("vocab.json"));
  KVLANE_ASSIGN(json["model"]["merges"], read_merges(merges));
  KVLANE_TRY(tokenizer_fields::read_document(config_json, read_config)
                 .with_context("tokenizer_config.json"));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvlane
