// Types and ranges of JSON values.
// SPDX-License-Identifier: Apache-2.0
#include "server/json_field.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/json_text.h"

namespace kvlane {

using nlohmann::json;

namespace {

constexpr std::size_t kNameShownMax = 100;  // of what clients call things, in messages

std::string number_text(double value) {
  std::ostringstream text;  // "0.5" and "2", not "0.500000"
  text << value;
  return text.str();
}

}  // namespace

ApiError wrong_field(std::string_view name, const std::string& what) {
  return {400, "'" + std::string(name) + "' " + what + ".", std::string(name), ""};
}

ApiError unknown_field(std::string_view name) {
  const std::string shown(name.substr(0, kNameShownMax));
  return {400, "Unknown field '" + shown + "'.", shown, ""};
}

Refusal check_model(const std::string& asked_for, const std::string& served) {
  if (asked_for.empty() || asked_for == served) return {};
  return ApiError{404,
                  "The model `" + asked_for.substr(0, kNameShownMax) +
                      "` does not exist; this is `" + served + "`.",
                  "model", "model_not_found"};
}

std::string quoted(const json& value) {
  constexpr std::size_t kQuoteBytesMax = 60;
  std::string text = to_text(value);
  if (text.size() > kQuoteBytesMax) text.replace(kQuoteBytesMax, std::string::npos, "...");
  return text;
}

Refusal read_bool(const json& value, std::string_view name, bool& out) {
  if (!value.is_boolean()) return wrong_field(name, "must be true or false, not " + quoted(value));
  out = value.get<bool>();
  return {};
}

Refusal read_string(const json& value, std::string_view name, std::string& out) {
  if (!value.is_string()) return wrong_field(name, "must be a string, not " + quoted(value));
  out = value.get<std::string>();
  return {};
}

Refusal read_name(const json& value, std::string_view name, std::size_t bytes_max,
                  std::string& out) {
  if (Refusal refusal = read_string(value, name, out)) return refusal;
  if (out.empty() || out.size() > bytes_max) {
    return wrong_field(name, "must have 1 to " + std::to_string(bytes_max) + " bytes, not " +
                                 std::to_string(out.size()));
  }
  return {};
}

Refusal read_int(const json& value, std::string_view name, int min, int max, int& out) {
  // Unsigned numbers beyond 2^63 must not turn into negative ones.
  const bool too_large =
      value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT32_MAX};
  if (!value.is_number_integer() || too_large || value.get<std::int64_t>() < min ||
      value.get<std::int64_t>() > max) {
    return wrong_field(name, "must be an integer from " + std::to_string(min) + " to " +
                                 std::to_string(max) + ", not " + quoted(value));
  }
  out = value.get<int>();
  return {};
}

Refusal read_number(const json& value, std::string_view name, double min, double max, float& out) {
  if (!value.is_number() || value.get<double>() < min || value.get<double>() > max) {
    return wrong_field(name, "must be a number from " + number_text(min) + " to " +
                                 number_text(max) + ", not " + quoted(value));
  }
  out = value.get<float>();
  return {};
}

Refusal read_token_ids(const json& value, std::string_view name, std::size_t count_max,
                       std::vector<std::int32_t>& out) {
  if (!value.is_array()) {
    return wrong_field(name, "must be an array of token ids, not " + quoted(value));
  }
  if (value.size() > count_max) {
    return wrong_field(name, "holds " + std::to_string(value.size()) + " token ids; at most " +
                                 std::to_string(count_max) + " are allowed");
  }
  out.reserve(value.size());
  for (const json& id : value) {
    int number = 0;
    if (read_int(id, name, 0, INT32_MAX, number)) {
      return wrong_field(name, "contains " + quoted(id) + ", which is not a token id");
    }
    out.push_back(number);
  }
  return {};
}

}  // namespace kvlane
