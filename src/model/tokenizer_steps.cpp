// Every step is read into what does it, or refused.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_steps.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "model/tokenizer_fields.h"

namespace kvlane {
namespace {

using tokenizer_fields::field;
using tokenizer_fields::flag;
using tokenizer_fields::Json;
using tokenizer_fields::quoted;
using tokenizer_fields::refuse;
using tokenizer_fields::short_text;
using tokenizer_fields::steps_of;
using tokenizer_fields::token_id;
using tokenizer_fields::type_of;

// Most tokens that post-processors put around a text.
constexpr std::size_t kTemplateTokensMax = 1024;
// Spaces that a decoder takes off; known files have one.
constexpr int kStripMax = 1024;

// ---- what several steps have ----

struct Replacement {
  std::string from;
  std::string to;
};

Result<Replacement> parse_replacement(const Json& part, std::string_view kind) {
  const Json& pattern = field(part, "pattern");
  if (!field(pattern, "String").is_string()) {
    return unsupported("the pattern " + quoted(pattern) + " of a " + std::string(kind) +
                       " 'Replace' is not a String");
  }
  Replacement replacement;
  KVLANE_ASSIGN(replacement.from, short_text(pattern, "String", kReplacementBytesMax));
  if (field(part, "content") != "") {
    KVLANE_ASSIGN(replacement.to, short_text(part, "content", kReplacementBytesMax));
  }
  return replacement;
}

// "replacement" of a Metaspace: one character.
Result<std::string> parse_mark(const Json& part) {
  KVLANE_ASSIGN(std::string mark, short_text(part, "replacement", 4));
  if (next_utf8(mark).bytes != mark.size()) {
    return corrupt("the replacement " + quoted(Json(mark)) +
                   " of a 'Metaspace' is not one character");
  }
  return mark;
}

Result<Pretokenizer::Metaspace::Prepend> parse_prepend(const Json& part) {
  using Prepend = Pretokenizer::Metaspace::Prepend;
  const Json& scheme = field(part, "prepend_scheme");
  Prepend prepend = Prepend::kAlways;
  if (scheme == "never") {
    prepend = Prepend::kNever;
  } else if (scheme == "first") {
    prepend = Prepend::kFirst;
  } else if (!scheme.is_null() && scheme != "always") {
    return unsupported("the prepend_scheme " + quoted(scheme) +
                       " of a 'Metaspace' is not supported");
  }
  // The older way to say it.
  KVLANE_ASSIGN(const bool prefix, flag(part, "add_prefix_space", true));
  if (!prefix && prepend != Prepend::kNever) {
    return corrupt("'add_prefix_space' of a 'Metaspace' contradicts its prepend_scheme");
  }
  return prepend;
}

// ---- normalizer ----

Status add_normalizer(const Json& part, std::vector<TextNormalizer::Step>& steps) {
  const std::string type = type_of(part);
  if (type == "NFC") {
    steps.emplace_back(TextNormalizer::Nfc());
  } else if (type == "Prepend") {
    KVLANE_ASSIGN(std::string text, short_text(part, "prepend", kReplacementBytesMax));
    steps.emplace_back(TextNormalizer::Prepend{std::move(text)});
  } else if (type == "Replace") {
    KVLANE_ASSIGN(Replacement replacement, parse_replacement(part, "normalizer"));
    steps.emplace_back(
        TextNormalizer::Replace{std::move(replacement.from), std::move(replacement.to)});
  } else {
    return refuse("normalizer", part);
  }
  return {};
}

// ---- pre_tokenizer ----

Status add_rule(std::string_view pattern, SplitBehavior behavior, PretokenizerSteps& steps) {
  KVLANE_ASSIGN(SplitRule rule, SplitRule::compile(pattern));
  steps.list.emplace_back(Pretokenizer::Split{std::move(rule), behavior});
  return {};
}

Result<SplitBehavior> parse_behavior(const Json& part) {
  const Json& name = field(part, "behavior");
  const std::optional<SplitBehavior> behavior =
      name.is_string() ? find_split_behavior(name.get_ref<const std::string&>()) : std::nullopt;
  if (behavior) return *behavior;
  return unsupported("the behavior " + quoted(name) + " of a pre_tokenizer '" + type_of(part) +
                     "' is not supported");
}

Status add_split(const Json& part, PretokenizerSteps& steps) {
  const Json& pattern = field(part, "pattern");
  const Json& regex = field(pattern, "Regex");
  const Json& literal = field(pattern, "String");
  if (!regex.is_string() && (!literal.is_string() || literal == "")) {
    return unsupported("the pattern " + quoted(pattern) +
                       " of a pre_tokenizer 'Split' is neither a Regex nor a String");
  }
  KVLANE_ASSIGN(const SplitBehavior behavior, parse_behavior(part));
  KVLANE_ASSIGN(const bool invert, flag(part, "invert"));
  KVLANE_ASSIGN(SplitRule rule, regex.is_string()
                                    ? SplitRule::compile(regex.get_ref<const std::string&>())
                                    : SplitRule::of_literal(literal.get_ref<const std::string&>()));
  steps.list.emplace_back(Pretokenizer::Split{std::move(rule), behavior, invert});
  return {};
}

Status add_byte_level(const Json& part, bool last, PretokenizerSteps& steps) {
  KVLANE_ASSIGN(const bool prefix_space, flag(part, "add_prefix_space"));
  KVLANE_ASSIGN(const bool use_regex, flag(part, "use_regex", true));
  if (prefix_space) steps.list.emplace_back(Pretokenizer::PrefixSpace());
  if (use_regex) KVLANE_TRY(add_rule(kByteLevelRule, SplitBehavior::kIsolated, steps));
  // After it, text is spelt in another alphabet: digits, say, are found inside characters.
  if (!last) steps.list.emplace_back(Pretokenizer::ByteAlphabet());
  steps.byte_level = true;
  return {};
}

Status add_metaspace(const Json& part, PretokenizerSteps& steps) {
  Pretokenizer::Metaspace metaspace;
  KVLANE_ASSIGN(metaspace.mark, parse_mark(part));
  KVLANE_ASSIGN(metaspace.prepend, parse_prepend(part));
  KVLANE_ASSIGN(metaspace.split, flag(part, "split", true));
  steps.list.emplace_back(std::move(metaspace));
  steps.metaspace = true;
  return {};
}

Status add_pretokenizer(const Json& part, bool last, PretokenizerSteps& steps) {
  const std::string type = type_of(part);
  if (type == "Split") return add_split(part, steps);
  if (type == "Digits") {
    KVLANE_ASSIGN(const bool each, flag(part, "individual_digits"));
    return add_rule(kNumberRule, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                    steps);
  }
  if (type == "Punctuation") {
    KVLANE_ASSIGN(const SplitBehavior behavior, field(part, "behavior").is_null()
                                                    ? Result(SplitBehavior::kIsolated)
                                                    : parse_behavior(part));
    return add_rule(punctuation_rule(), behavior, steps);
  }
  const bool byte_level = type == "ByteLevel";
  if (!byte_level && type != "Metaspace") return refuse("pre_tokenizer", part);
  if (steps.byte_level || steps.metaspace) {
    return unsupported("a pre_tokenizer '" + type +
                       "' after 'ByteLevel' or 'Metaspace' is not supported");
  }
  return byte_level ? add_byte_level(part, last, steps) : add_metaspace(part, steps);
}

// ---- post_processor ----

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

Status add_template(const Json& processor, TokenizerParts& parts) {
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
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
  return {};
}

// ---- decoder ----

// Where in the order of known decoders a step stands; what belongs before may not come after.
enum class Stage { kTokens, kBytes, kFused, kStripped };

Status add_decoder(const Json& part, Stage& stage, DecoderOptions& decoder) {
  const std::string type = type_of(part);
  const auto enter = [&](Stage next) -> Status {
    if (next < stage)
      return unsupported("the decoder '" + type + "' at this place is not supported");
    stage = next;
    return {};
  };
  if (type == "Replace") {
    KVLANE_TRY(enter(Stage::kTokens));
    KVLANE_ASSIGN(Replacement replacement, parse_replacement(part, "decoder"));
    decoder.replacements.push_back({std::move(replacement.from), std::move(replacement.to)});
  } else if (type == "Metaspace") {
    KVLANE_TRY(enter(Stage::kTokens));
    if (!decoder.replacements.empty()) {
      return unsupported("the decoder 'Metaspace' after another one is not supported");
    }
    KVLANE_ASSIGN(const std::string mark, parse_mark(part));
    KVLANE_ASSIGN(const Pretokenizer::Metaspace::Prepend prepend, parse_prepend(part));
    if (prepend != Pretokenizer::Metaspace::Prepend::kNever) decoder.dropped_in_first = mark;
    decoder.replacements.push_back({mark, " "});
  } else if (type == "ByteFallback") {
    KVLANE_TRY(enter(Stage::kBytes));
    decoder.byte_fallback = true;
  } else if (type == "Fuse") {
    KVLANE_TRY(enter(Stage::kFused));
  } else if (type == "Strip") {
    if (stage != Stage::kFused) {
      return unsupported("the decoder 'Strip' without 'Fuse' just before it is not supported");
    }
    KVLANE_TRY(enter(Stage::kStripped));
    const Json& start = field(part, "start");
    if (field(part, "content") != " " || field(part, "stop") != 0 || !start.is_number_unsigned() ||
        start > kStripMax) {
      return unsupported("a decoder 'Strip' of something else than spaces at the start");
    }
    decoder.spaces_stripped_max = start.get<int>();
  } else {
    return refuse("decoder", part);
  }
  return {};
}

}  // namespace

Result<TextNormalizer> parse_normalizer(const Json& part) {
  std::vector<TextNormalizer::Step> steps;
  if (part.is_null()) return TextNormalizer();
  KVLANE_ASSIGN(const auto parts, steps_of(part, "normalizers", "normalizer"));
  for (const Json* step : parts) KVLANE_TRY(add_normalizer(*step, steps));
  return TextNormalizer(std::move(steps));
}

Result<PretokenizerSteps> parse_pretokenizer(const Json& part) {
  PretokenizerSteps steps;
  if (part.is_null()) return steps;
  KVLANE_ASSIGN(const auto parts, steps_of(part, "pretokenizers", "pre_tokenizer"));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    KVLANE_TRY(add_pretokenizer(*parts[i], i + 1 == parts.size(), steps));
  }
  return steps;
}

Status parse_post_processor(const Json& part, TokenizerParts& parts) {
  if (part.is_null()) return {};
  KVLANE_ASSIGN(const auto steps, steps_of(part, "processors", "post_processor"));
  for (const Json* step : steps) {
    const std::string type = type_of(*step);
    if (type == "TemplateProcessing") {
      KVLANE_TRY(add_template(*step, parts));
    } else if (type != "ByteLevel") {  // that one moves offsets, not ids
      return refuse("post_processor", *step);
    }
  }
  for (const std::vector<std::int32_t>* side : {&parts.prefix, &parts.suffix}) {
    for (const std::int32_t id : *side) {
      if (parts.vocabulary.contains(id)) continue;
      return corrupt("the template token id " + std::to_string(id) + " is not in the vocabulary");
    }
  }
  return {};
}

Result<DecoderOptions> parse_decoder(const Json& part, bool byte_level) {
  DecoderOptions decoder;
  if (byte_level != (type_of(part) == "ByteLevel")) {
    return unsupported("the decoder " + quoted(Json(type_of(part))) + " is not supported with" +
                       (byte_level ? "" : "out") + " the pre_tokenizer 'ByteLevel'");
  }
  if (byte_level) return decoder;
  KVLANE_ASSIGN(const auto steps, steps_of(part, "decoders", "decoder"));
  Stage stage = Stage::kTokens;
  for (const Json* step : steps) KVLANE_TRY(add_decoder(*step, stage, decoder));
  return decoder;
}

}  // namespace kvlane
