// Each reader refuses what it does not expect, by its name.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_fields.h"

#include <new>
#include <nlohmann/json.hpp>

#include "model/tokenizer_parts.h"

namespace kvlane::tokenizer_fields {

const Json& field(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto at = object.find(name);
  return at == object.end() ? kNull : *at;
}

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

Result<bool> flag(const Json& object, const char* name, std::optional<bool> fallback) {
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

Result<std::string> short_text(const Json& object, const char* name, std::size_t bytes_max) {
  const Json& value = field(object, name);
  if (!value.is_string()) return corrupt(std::string("'") + name + "' is " + quoted(value));
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty() || text.size() > bytes_max) {
    return unsupported(std::string("'") + name + "' has " + std::to_string(text.size()) +
                       " bytes; kvlane takes 1 to " + std::to_string(bytes_max));
  }
  return text;
}

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

Result<AddedToken> parse_added_token(const Json& item) {
  AddedToken token;
  const Json& content = field(item, "content");
  if (!content.is_string()) return corrupt("the added token " + quoted(item) + " has no content");
  token.content = content.get<std::string>();
  token.pattern = token.content;
  KVLANE_ASSIGN(token.special, flag(item, "special"));
  KVLANE_ASSIGN(token.normalized, flag(item, "normalized"));
  KVLANE_ASSIGN(token.strip_left, flag(item, "lstrip"));
  KVLANE_ASSIGN(token.strip_right, flag(item, "rstrip"));
  KVLANE_ASSIGN(token.single_word, flag(item, "single_word"));
  KVLANE_TRY(check_added_token(token.pattern));
  return token;
}

Status check_added_token(std::string_view text) {
  if (!text.empty() && text.size() <= kAddedTokenBytesMax) return {};
  return unsupported("an added token of " + std::to_string(text.size()) +
                     " bytes; kvlane takes 1 to " + std::to_string(kAddedTokenBytesMax));
}

Status read_document(std::string_view text, const std::function<Status(const Json&)>& read) {
  if (text.size() > kTokenizerBytesMax) {
    return unsupported("a file of " + std::to_string(text.size()) + " bytes; kvlane takes up to " +
                       std::to_string(kTokenizerBytesMax));
  }
  try {
    return read(Json::parse(text));
  } catch (const Json::parse_error& error) {
    return corrupt("it is not valid JSON (byte " + std::to_string(error.byte) + ")");
  } catch (const Json::out_of_range&) {
    return corrupt("it holds a number that is out of range");  // 6e411
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory for its " + std::to_string(text.size()) + " bytes");
  }
}

}  // namespace kvlane::tokenizer_fields
