// Fields of tokenizer.json, read one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

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

// The steps of a "Sequence", in its field `list`, or the one step that `part` is. They belong to
// the document.
Result<std::vector<const Json*>> steps_of(const Json& part, const char* list,
                                          std::string_view kind);

}  // namespace kvlane::tokenizer_fields
