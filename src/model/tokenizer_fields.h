// Fields of tokenizer.json and tokenizer_config.json, read one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/added_tokens.h"

namespace kvlane::tokenizer_fields {

using Json = nlohmann::json;

// Most normalizers, pre-tokenizers, post-processors and decoders, one after another. Known files
// have up to four.
inline constexpr std::size_t kStepsMax = 16;

// The field `name` of `object`; null (a JSON value) when it is absent or `object` is none.
const Json& field(const Json& object, const char* name);

// A value from the file for an error message: short, whatever it is.
std::string quoted(const Json& value);

// What "type" of `part` says; the part itself, quoted, when there is none.
std::string type_of(const Json& part);

// kUnsupported: the `kind` of this type.
Status refuse(std::string_view kind, const Json& part);

Result<bool> flag(const Json& object, const char* name,
                  std::optional<bool> fallback = std::nullopt);

// A string of 1 to `bytes_max` bytes.
Result<std::string> short_text(const Json& object, const char* name, std::size_t bytes_max);

Result<std::int32_t> token_id(const Json& value);

// All but the id. The pattern is the content.
Result<AddedToken> parse_added_token(const Json& item);

// kUnsupported for the length of a content or pattern.
Status check_added_token(std::string_view text);

// The steps of a "Sequence", in its field `list`, or the one step that `part` is. They belong to
// the document.
Result<std::vector<const Json*>> steps_of(const Json& part, const char* list,
                                          std::string_view kind);

// Parses a file and gives it to `read`, whose error it returns. kCorrupt for what is no JSON,
// kUnsupported for more than kTokenizerBytesMax bytes.
Status read_document(std::string_view text, const std::function<Status(const Json&)>& read);

}  // namespace kvlane::tokenizer_fields
