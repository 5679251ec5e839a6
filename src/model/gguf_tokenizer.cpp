// Tokens, merges and special ids of the file; the steps around them are those of the kind.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/config_fields.h"
#include "model/utf8.h"
#include "model/vocabulary.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using Texts = std::vector<std::string_view>;

// Longest token whose merges are looked for; known ones have below 100 bytes.
constexpr std::size_t kMergedBytesMax = 256;
constexpr const char* kBos = "tokenizer.ggml.bos_token_id";
constexpr const char* kEos = "tokenizer.ggml.eos_token_id";
constexpr const char* kUnk = "tokenizer.ggml.unknown_token_id";
// By their names in chat templates, where hardly one asks for them.
constexpr std::pair<const char*, const char*> kOtherTokens[] = {
    {"unk_token", kUnk},
    {"sep_token", "tokenizer.ggml.seperator_token_id"},  // as llama.cpp spells it
    {"pad_token", "tokenizer.ggml.padding_token_id"},
    {"cls_token", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"}};

// Types of tokens that are recognised in the text itself.
constexpr double kUnknown = 2;
constexpr double kControl = 3;
constexpr double kUserDefined = 4;
constexpr double kUnused = 5;

constexpr const char* kLlama3Rule =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Rule =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
}

Json split(const char* rule) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", rule}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json sequence(const char* list, Json steps) {
  return {{"type", "Sequence"}, {list, std::move(steps)}};
}

Json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

const std::vector<double>* find_types(const GgufFile& file) {
  return find_entry<std::vector<double>>(file, "tokenizer.ggml.token_type");
}

// Whether a token takes the spaces behind it along: Phi-3's own do, but for those that it has of
// Llama. No entry says so; llama.cpp goes by the name of the model.
bool strips_behind(bool phi3, std::string_view token, double type) {
  if (!phi3 || token == "<unk>" || token == "<s>" || token == "<|endoftext|>") return false;
  return token != "</s>" || type == kUserDefined;
}

bool flag_or(const GgufFile& file, const char* name, bool fallback) {
  const bool* const value = find_entry<bool>(file, name);
  return value != nullptr ? *value : fallback;
}

// The merges that make tokens of pairs of others, of the best score first. Ids that nobody uses
// ("[PAD32012]") have no part in them.
Json merges_by_score(const Texts& tokens, const std::vector<double>& scores,
                     const std::vector<double>* types) {
  const auto unused = [&](std::size_t id) { return types != nullptr && (*types)[id] == kUnused; };
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!unused(id)) ids.emplace(tokens[id], id);
  }
  struct Merge {
    double score;
    std::string_view left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    // Separators, which are user-defined, may be long.
    if (token.size() > kMergedBytesMax || unused(id)) continue;
    for (std::size_t at = 1; at < token.size(); ++at) {
      const std::string_view left = token.substr(0, at);
      const std::string_view right = token.substr(at);
      if (ids.contains(left) && ids.contains(right)) merges.push_back({scores[id], left, right});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.left.size()) > std::tuple(b.score, b.left.size());
  });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back({merge.left, merge.right});
  return list;
}

// "llama": what tokenizer.json of Llama 2 says.
Status write_llama(const GgufFile& file, const Texts& tokens, Json& json) {
  const auto* const scores = find_entry<std::vector<double>>(file, "tokenizer.ggml.scores");
  if (scores == nullptr || scores->size() != tokens.size()) {
    return corrupt("'tokenizer.ggml.scores' is missing or has another length than the tokens");
  }
  if (!std::all_of(scores->begin(), scores->end(), [](double s) { return std::isfinite(s); })) {
    return corrupt("'tokenizer.ggml.scores' has a number that is not finite");
  }
  Json& model = json["model"];
  model["merges"] = merges_by_score(tokens, *scores, find_types(file));
  model["byte_fallback"] = true;
  model["fuse_unk"] = true;
  const double* const unknown = find_entry<double>(file, kUnk);
  if (unknown != nullptr && *unknown >= 0 && *unknown < static_cast<double>(tokens.size())) {
    model["unk_token"] = tokens[static_cast<std::size_t>(*unknown)];
  }
  const bool prefix = flag_or(file, "tokenizer.ggml.add_space_prefix", true);
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back(Json{{"type", "Prepend"}, {"prepend", "\u2581"}});
  normalizers.push_back(replace(" ", "\u2581"));
  Json decoders =
      Json::array({replace("\u2581", " "), Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}});
  if (prefix) {
    decoders.push_back(Json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  json["normalizer"] = sequence("normalizers", std::move(normalizers));
  json["decoder"] = sequence("decoders", std::move(decoders));
  return {};
}

// "gpt2": bytes, split as "tokenizer.ggml.pre" says.
Status write_gpt2(const GgufFile& file, std::string_view pre, Json& json) {
  const auto* const merges = find_entry<Texts>(file, "tokenizer.ggml.merges");
  if (merges == nullptr) return corrupt("it has no 'tokenizer.ggml.merges'");
  for (const std::string_view merge : *merges) {
    if (find_invalid_utf8(merge)) return corrupt("a merge is not valid UTF-8");
  }
  json["model"]["merges"] = *merges;
  json["decoder"] = {{"type", "ByteLevel"}};
  Json& steps = json["pre_tokenizer"];
  if (pre == "gpt-2") {
    steps = byte_level(true);
  } else if (pre == "llama-bpe") {
    steps = sequence("pretokenizers", Json::array({split(kLlama3Rule), byte_level(false)}));
    json["model"]["ignore_merges"] = true;
  } else if (pre == "qwen2") {
    steps = sequence("pretokenizers", Json::array({split(kQwen2Rule), byte_level(false)}));
    json["normalizer"] = {{"type", "NFC"}};
  } else if (pre == "falcon") {
    steps = sequence("pretokenizers",
                     Json::array({{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                                  byte_level(true),
                                  {{"type", "Digits"}, {"individual_digits", false}},
                                  split("[0-9][0-9][0-9]")}));
  } else {
    return unsupported("'tokenizer.ggml.pre' is " + in_quotes(std::string(pre)) +
                       "; kvlane reads gpt-2, llama-bpe, qwen2 and falcon");
  }
  return {};
}

Status write_tokens(const GgufFile& file, const Texts& tokens, bool phi3, Json& json) {
  const std::vector<double>* const types = find_types(file);
  if (types != nullptr && types->size() != tokens.size()) {
    return corrupt("'tokenizer.ggml.token_type' has another length than the tokens");
  }
  Json& vocabulary = json["model"]["vocab"] = Json::object();
  Json& added = json["added_tokens"] = Json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (find_invalid_utf8(tokens[id])) {
      return corrupt("token " + std::to_string(id) + " is not valid UTF-8");
    }
    vocabulary[std::string(tokens[id])] = id;
    const double type = types == nullptr ? 0 : (*types)[id];
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", strips_behind(phi3, tokens[id], type)},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  if (vocabulary.size() != tokens.size()) return corrupt("a token is there twice");
  return {};
}

// The text of the token whose id this entry is; nullopt where there is no such entry.
Result<std::optional<std::string>> named_token(const GgufFile& file, const Texts& tokens,
                                               const char* entry) {
  const double* const id = find_entry<double>(file, entry);
  if (id == nullptr) return std::optional<std::string>();
  if (!(*id >= 0 && *id < static_cast<double>(tokens.size()))) {
    return corrupt(std::string("'") + entry + "' is no token");
  }
  return std::optional<std::string>(tokens[static_cast<std::size_t>(*id)]);
}

// The tokens that are put before and behind a text.
Status write_template(const GgufFile& file, const Texts& tokens, bool bos, bool eos, Json& json) {
  Json pieces = Json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  Json known = Json::object();
  const auto add = [&](const char* entry, bool before) -> Status {
    KVLANE_ASSIGN(const std::optional<std::string> name, named_token(file, tokens, entry));
    if (!name) return {};
    known[*name] = {{"ids", {static_cast<std::int64_t>(*find_entry<double>(file, entry))}}};
    pieces.insert(before ? pieces.begin() : pieces.end(), Json{{"SpecialToken", {{"id", *name}}}});
    return {};
  };
  if (bos) KVLANE_TRY(add(kBos, true));
  if (eos) KVLANE_TRY(add(kEos, false));
  json["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", pieces}, {"special_tokens", known}};
  return {};
}

}  // namespace

Result<std::string> gguf_tokenizer_json(const GgufFile& file) {
  const auto* const model = find_entry<std::string_view>(file, "tokenizer.ggml.model");
  const auto* const tokens = find_entry<Texts>(file, kGgufTokens);
  const auto* const architecture = find_entry<std::string_view>(file, "general.architecture");
  const auto* const pre = find_entry<std::string_view>(file, "tokenizer.ggml.pre");
  if (model == nullptr || tokens == nullptr) return corrupt("it has no tokenizer");
  if (tokens->size() > static_cast<std::size_t>(kTokenIdsMax)) {
    return unsupported(std::to_string(tokens->size()) + " tokens are more than " +
                       std::to_string(kTokenIdsMax));
  }
  Json json = {{"version", "1.0"}, {"model", {{"type", "BPE"}}}};
  const bool llama = *model == "llama";
  const bool phi3 = llama && architecture != nullptr && *architecture == "phi3";
  KVLANE_TRY(write_tokens(file, *tokens, phi3, json));
  if (llama) {
    KVLANE_TRY(write_llama(file, *tokens, json));
  } else if (*model == "gpt2") {
    KVLANE_TRY(write_gpt2(file, pre != nullptr ? *pre : "", json));
  } else {
    return unsupported("'tokenizer.ggml.model' is " + in_quotes(std::string(*model)) +
                       "; kvlane reads llama and gpt2");
  }
  const bool bos = flag_or(file, "tokenizer.ggml.add_bos_token",
                           llama || (pre != nullptr && *pre == "llama-bpe"));
  const bool eos = flag_or(file, "tokenizer.ggml.add_eos_token", false);
  KVLANE_TRY(write_template(file, *tokens, bos, eos, json));
  return json.dump();
}

Result<GgufChat> gguf_chat(const GgufFile& file) {
  const auto* const source = find_entry<std::string_view>(file, "tokenizer.chat_template");
  const auto* const tokens = find_entry<Texts>(file, kGgufTokens);
  if (tokens == nullptr) return corrupt("it has no tokenizer");
  GgufChat chat{.source = std::string(source != nullptr ? *source : ""), .tokens = {}};
  const auto add = [&](const char* name, std::optional<std::string> text) {
    if (text) chat.tokens.emplace(name, std::move(*text));
  };
  KVLANE_ASSIGN(std::optional<std::string> bos, named_token(file, *tokens, kBos));
  KVLANE_ASSIGN(std::optional<std::string> eos, named_token(file, *tokens, kEos));
  add("bos_token", std::move(bos));
  add("eos_token", std::move(eos));
  for (const auto& [name, entry] : kOtherTokens) {
    // Writers say in more than one way that there is none.
    Result<std::optional<std::string>> text = named_token(file, *tokens, entry);
    if (text.ok()) add(name, std::move(*text));
  }
  return chat;
}

}  // namespace kvlane
