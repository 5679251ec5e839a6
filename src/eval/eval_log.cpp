// JSON lines, appended as they are measured.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLogBytesMax = std::size_t{1} << 30;

Json parse_line(std::string_view line) { return Json::parse(line, nullptr, false); }

Status not_ours(const std::filesystem::path& file, std::size_t line) {
  return corrupt(file.string() + ": line " + std::to_string(line) +
                 " is not one that an evaluation wrote");
}

// Reads the pieces of `text`; returns how many of its bytes are whole lines.
Result<std::size_t> read_lines(const std::filesystem::path& file, std::string_view text,
                               const std::string& subject,
                               std::map<std::string, std::vector<double>>& values) {
  std::size_t at = 0;
  for (std::size_t number = 1; at < text.size(); ++number) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;
    const Json line = parse_line(text.substr(at, end - at));
    at = end + 1;
    if (number == 1) {
      if (!line.is_object() || !line.contains("subject")) return not_ours(file, number);
      if (line["subject"] == subject) continue;
      return invalid_argument(file.string() +
                              " is the log of another evaluation (other model, text, options or "
                              "program): choose another --out, or remove it");
    }
    if (!line.is_object() || !line.contains("key") || !line["key"].is_string() ||
        !line.contains("values") || !line["values"].is_array()) {
      return not_ours(file, number);
    }
    std::vector<double> numbers;
    for (const Json& value : line["values"]) {
      if (!value.is_number()) return not_ours(file, number);
      numbers.push_back(value.get<double>());
    }
    values[line["key"].get<std::string>()] = std::move(numbers);
  }
  return at;
}

}  // namespace

Result<EvalLog> EvalLog::open(const std::filesystem::path& file, const std::string& subject) {
  EvalLog log;
  std::size_t whole = 0;
  if (std::filesystem::exists(file)) {
    KVLANE_ASSIGN(const std::string text, read_text_file(file, kLogBytesMax));
    KVLANE_ASSIGN(whole, read_lines(file, text, subject, log.values_));
  }
  log.file_ = Descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (log.file_.get() < 0) return errno_status("open", file);
  if (::ftruncate(log.file_.get(), static_cast<off_t>(whole)) != 0 ||
      ::lseek(log.file_.get(), 0, SEEK_END) < 0) {
    return errno_status("write", file);
  }
  if (whole == 0) {
    const std::string line = Json{{"subject", subject}}.dump() + "\n";
    KVLANE_TRY(write_all(log.file_.get(), as_byte_view(line), file));
  }
  log.path_ = file;
  return log;
}

std::optional<std::vector<double>> EvalLog::find(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

Status EvalLog::add(const std::string& key, std::span<const double> values) {
  if (file_.get() < 0) return {};
  const std::string line = Json{{"key", key}, {"values", values}}.dump() + "\n";
  KVLANE_TRY(write_all(file_.get(), as_byte_view(line), path_));
  values_[key].assign(values.begin(), values.end());
  return {};
}

Result<std::vector<double>> EvalLog::find_or_add(
    const std::string& key, const std::function<Result<std::vector<double>>()>& measure) {
  if (std::optional<std::vector<double>> known = find(key)) return std::move(*known);
  KVLANE_ASSIGN(std::vector<double> values, measure());
  KVLANE_TRY(add(key, values));
  return values;
}

}  // namespace kvlane
