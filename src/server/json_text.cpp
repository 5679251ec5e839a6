// Parsing with a depth limit, printing with replacement.
// SPDX-License-Identifier: Apache-2.0
#include "server/json_text.h"

#include <nlohmann/json.hpp>

namespace kvlane {

namespace {

using nlohmann::json;

// The parser quotes what it read last, which may be the whole text.
constexpr std::size_t kMessageBytesMax = 200;

struct TooDeep {};

}  // namespace

Result<json> parse_json(std::string_view text) {
  const auto check_depth = [](int depth, json::parse_event_t, const json&) {
    if (depth > kJsonDepthMax) throw TooDeep();
    return true;
  };
  try {
    return json::parse(text, check_depth);
  } catch (const json::exception& error) {
    std::string message = error.what();
    // "[json.exception.parse_error.101] " is for programmers.
    if (const auto end = message.find("] "); end != std::string::npos) message.erase(0, end + 2);
    message.resize(std::min(message.size(), kMessageBytesMax));
    return invalid_argument("not valid JSON: " + message);
  } catch (const TooDeep&) {
    return invalid_argument("the JSON is nested deeper than " + std::to_string(kJsonDepthMax) +
                            " levels");
  }
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace kvlane
