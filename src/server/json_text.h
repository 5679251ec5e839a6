// JSON from strangers: parsed with limits, printed without exceptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// kInvalidArgument says what the text is instead: "not valid JSON: ..." (invalid UTF-8 included),
// or nested deeper than kJsonDepthMax (model/json_depth.h): printing and comparing values recurse.
Result<nlohmann::json> parse_json(std::string_view text);

// On one line; bytes that are not UTF-8 become U+FFFD.
std::string to_text(const nlohmann::json& value);

}  // namespace kvlane
