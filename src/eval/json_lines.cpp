// One object a line.
// SPDX-License-Identifier: Apache-2.0
#include "eval/json_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/file.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using Lines = std::vector<std::map<std::string, std::string>>;

constexpr std::string_view kGzipMagic = "\x1f\x8b";

Result<Lines> parse_lines(const std::string& file, std::string_view text) {
  if (text.substr(0, kGzipMagic.size()) == kGzipMagic) {
    return invalid_argument(file + " is compressed (gzip): unpack it first");
  }
  Lines lines;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) {
      return invalid_argument(file + ": line " + std::to_string(number) + " is not a JSON object");
    }
    auto& fields = lines.emplace_back();
    for (const auto& [key, value] : json.items()) {
      if (value.is_string()) fields[key] = value.get<std::string>();
    }
  }
  return lines;
}

}  // namespace

Result<JsonLines> read_json_lines(const std::filesystem::path& file) {
  const auto text = read_text_file(file, kJsonLinesBytesMax);
  if (!text.ok()) return text.status();
  KVLANE_ASSIGN(const Sha256Digest digest, sha256(as_byte_view(*text)));
  JsonLines result{.digest = to_hex(digest).substr(0, 16)};
  KVLANE_ASSIGN(result.lines, parse_lines(file.string(), *text));
  return result;
}

}  // namespace kvlane
