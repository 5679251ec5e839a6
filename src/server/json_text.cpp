// Parsing with a depth limit, printing with replacement.
// SPDX-License-Identifier: Apache-2.0
#include "server/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/json_depth.h"

namespace kvlane {

namespace {

using nlohmann::json;

// The parser quotes what it read last, which may be the whole text.
constexpr std::size_t kMessageBytesMax = 200;

}  // namespace

Result<json> parse_json(std::string_view text) {
  // Before parsing: the library's callback, which knows the depth too, makes an array of n objects
  // take time n squared.
  if (json_depth(text) > kJsonDepthMax) {
    return invalid_argument("nested deeper than " + std::to_string(kJsonDepthMax) + " levels");
  }
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    std::string message = error.what();
    // "[json.exception.parse_error.101] " is for programmers.
    if (const auto end = message.find("] "); end != std::string::npos) message.erase(0, end + 2);
    message.resize(std::min(message.size(), kMessageBytesMax));
    return invalid_argument("not valid JSON: " + message);
  }
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace kvlane
