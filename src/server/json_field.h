// Fields of a JSON request, read strictly: each reader gives the value, or the refusal that names
// the field and quotes what was sent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace kvlane {

using Refusal = std::optional<ApiError>;

// "'name' what." with status 400.
ApiError wrong_field(std::string_view name, const std::string& what);

ApiError unknown_field(std::string_view name);

// Refuses every name but `served`; an empty one means whichever is served.
Refusal check_model(const std::string& asked_for, const std::string& served);

// The value as it was sent, short enough for a sentence.
std::string quoted(const nlohmann::json& value);

Refusal read_bool(const nlohmann::json& value, std::string_view name, bool& out);
Refusal read_string(const nlohmann::json& value, std::string_view name, std::string& out);
// From 1 byte up to `bytes_max`.
Refusal read_name(const nlohmann::json& value, std::string_view name, std::size_t bytes_max,
                  std::string& out);
Refusal read_int(const nlohmann::json& value, std::string_view name, int min, int max, int& out);
// Both limits are allowed values.
Refusal read_number(const nlohmann::json& value, std::string_view name, double min, double max,
                    float& out);
// An array of at most `count_max` token ids: integers from 0. Whether they are inside the
// vocabulary is for those to say who know it.
Refusal read_token_ids(const nlohmann::json& value, std::string_view name, std::size_t count_max,
                       std::vector<std::int32_t>& out);

}  // namespace kvlane
