// Line by line, each checked before it is kept.
// SPDX-License-Identifier: Apache-2.0
#include "bench/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;

// What a message quotes of a line.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kQuoteBytesMax = 40;
  std::string quote(text.substr(0, kQuoteBytesMax));
  for (char& c : quote) {
    if (c < ' ' || c > '~') c = '?';
  }
  return "'" + quote + (text.size() > kQuoteBytesMax ? "...'" : "'");
}

// The lines of a text with their numbers; "\r\n" ends one too.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  // False at the end.
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line = rest_.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    return true;
  }
  std::string where() const { return "line " + std::to_string(number_); }

 private:
  std::string_view rest_;
  std::size_t number_ = 0;
};

Status bad_tokens(std::string_view name, std::string_view value) {
  return invalid_argument(std::string(name) + " must be an integer from 0 to " +
                          std::to_string(kTraceTokensMax) + ", not " + in_quotes(value));
}

Result<int> json_tokens(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return invalid_argument(std::string(name) + " is missing");
  if (!found->is_number_unsigned() || *found > kTraceTokensMax) {
    return bad_tokens(name, to_text(*found));
  }
  return found->get<int>();
}

Result<std::vector<std::uint64_t>> json_blocks(const json& object, int input_tokens) {
  std::vector<std::uint64_t> blocks;
  const auto found = object.find("hash_ids");
  if (found == object.end() || found->is_null()) return blocks;
  const auto needed =
      static_cast<std::size_t>((input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens);
  if (!found->is_array() || found->size() < needed) {
    return invalid_argument("hash_ids must be an array of at least " + std::to_string(needed) +
                            " ids, one for each " + std::to_string(kTraceBlockTokens) + " of the " +
                            std::to_string(input_tokens) + " tokens");
  }
  for (std::size_t i = 0; i < needed; ++i) {
    const json& id = (*found)[i];
    if (!id.is_number_unsigned()) {
      return invalid_argument("hash_ids contains " + in_quotes(to_text(id)) +
                              ", which is not an integer from 0");
    }
    blocks.push_back(id.get<std::uint64_t>());
  }
  return blocks;
}

Result<TraceRequest> parse_mooncake_line(std::string_view line) {
  KVLANE_ASSIGN(const json object, parse_json(line));
  if (!object.is_object()) return invalid_argument("is not a JSON object");
  const auto timestamp = object.find("timestamp");
  if (timestamp == object.end()) return invalid_argument("timestamp is missing");
  if (!timestamp->is_number() || timestamp->get<double>() < 0) {
    return invalid_argument("timestamp must be a number of milliseconds from 0, not " +
                            in_quotes(to_text(*timestamp)));
  }
  TraceRequest request;
  request.time = timestamp->get<double>() / 1000;
  KVLANE_ASSIGN(request.input_tokens, json_tokens(object, "input_length"));
  KVLANE_ASSIGN(request.output_tokens, json_tokens(object, "output_length"));
  KVLANE_ASSIGN(request.blocks, json_blocks(object, request.input_tokens));
  return request;
}

std::vector<std::string_view> split_fields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Result<int> csv_tokens(std::string_view name, std::string_view text) {
  int tokens = 0;
  if (!parse_number(text, tokens) || tokens < 0 || tokens > kTraceTokensMax) {
    return bad_tokens(name, text);
  }
  return tokens;
}

Result<double> csv_seconds(std::string_view text) {
  double seconds = 0;
  if (!parse_number(text, seconds) || !std::isfinite(seconds)) {
    return invalid_argument("arrived_at must be a number of seconds, not " + in_quotes(text));
  }
  return seconds;
}

// Seconds since 1970 of "2023-11-16 18:17:03.9799600". Only differences are used.
Result<double> csv_timestamp(std::string_view text) {
  constexpr std::string_view kPattern = "dddd-dd-dd dd:dd:dd";
  bool matches = text.size() >= kPattern.size();
  for (std::size_t i = 0; matches && i < kPattern.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    matches = kPattern[i] == 'd' ? digit : text[i] == kPattern[i];
  }
  const auto part = [text](std::size_t from, std::size_t count) {
    int value = 0;
    parse_number(text.substr(from, count), value);
    return value;
  };
  double seconds = 0;
  std::chrono::year_month_day date{};
  if (matches) {
    date = std::chrono::year(part(0, 4)) / part(5, 2) / part(8, 2);
    matches = date.ok() && part(11, 2) < 24 && part(14, 2) < 60 &&
              parse_number(text.substr(17), seconds) && seconds >= 0 && seconds < 61;
  }
  if (!matches) {
    return invalid_argument("TIMESTAMP must look like 2023-11-16 18:17:03.98, not " +
                            in_quotes(text));
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600 * part(11, 2) + 60 * part(14, 2) + seconds;
}

// Where the columns are that matter.
struct Columns {
  std::size_t count = 0;
  std::optional<std::size_t> timestamp, arrived_at, input, output;
  std::string_view input_name, output_name;
};

Result<Columns> parse_header(std::string_view line) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  Columns columns;
  for (const std::string_view name : split_fields(line)) {
    const std::size_t index = columns.count++;
    if (name == "TIMESTAMP") columns.timestamp = index;
    if (name == "arrived_at") columns.arrived_at = index;
    if (name == "ContextTokens" || name == "num_prefill_tokens") {
      columns.input = index;
      columns.input_name = name;
    }
    if (name == "GeneratedTokens" || name == "num_decode_tokens") {
      columns.output = index;
      columns.output_name = name;
    }
  }
  if (!columns.input || !columns.output) {
    return invalid_argument(
        "line 1: the header must name ContextTokens and GeneratedTokens, or num_prefill_tokens and "
        "num_decode_tokens; it is " +
        in_quotes(line));
  }
  return columns;
}

Result<TraceRequest> parse_csv_line(const Columns& columns, std::string_view line) {
  const std::vector<std::string_view> fields = split_fields(line);
  if (fields.size() != columns.count) {
    return invalid_argument("has " + std::to_string(fields.size()) + " fields, the header " +
                            std::to_string(columns.count));
  }
  TraceRequest request;
  KVLANE_ASSIGN(request.input_tokens, csv_tokens(columns.input_name, fields[*columns.input]));
  KVLANE_ASSIGN(request.output_tokens, csv_tokens(columns.output_name, fields[*columns.output]));
  if (columns.timestamp) {
    KVLANE_ASSIGN(request.time, csv_timestamp(fields[*columns.timestamp]));
  } else if (columns.arrived_at) {
    KVLANE_ASSIGN(request.time, csv_seconds(fields[*columns.arrived_at]));
  }
  return request;
}

Status add_request(Trace& trace, Result<TraceRequest> request, const std::string& where) {
  if (!request.ok()) return request.status().with_context(where);
  if (trace.requests.size() >= kTraceRequestsMax) {
    return invalid_argument(where + ": a trace may have at most " +
                            std::to_string(kTraceRequestsMax) + " requests");
  }
  // A prompt has a first token and an answer too, whatever the record says.
  request->input_tokens = std::max(request->input_tokens, 1);
  request->output_tokens = std::max(request->output_tokens, 1);
  trace.requests.push_back(std::move(*request));
  return {};
}

Result<Trace> finished(Trace trace) {
  if (trace.requests.empty()) return invalid_argument("the trace has no requests");
  std::vector<TraceRequest>& requests = trace.requests;
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.time < b.time; });
  const double start = requests.front().time;
  for (TraceRequest& request : requests) request.time -= start;
  return trace;
}

}  // namespace

Result<Trace> parse_mooncake_trace(std::string_view text) {
  Trace trace;
  trace.has_times = true;
  Lines lines(text);
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty()) continue;
    KVLANE_TRY(add_request(trace, parse_mooncake_line(line), lines.where()));
  }
  return finished(std::move(trace));
}

Result<Trace> parse_csv_trace(std::string_view text) {
  Trace trace;
  Lines lines(text);
  std::string_view line;
  if (!lines.next(line)) return invalid_argument("the trace is empty");
  KVLANE_ASSIGN(const Columns columns, parse_header(line));
  trace.has_times = columns.timestamp || columns.arrived_at;
  while (lines.next(line)) {
    if (line.empty()) continue;
    KVLANE_TRY(add_request(trace, parse_csv_line(columns, line), lines.where()));
  }
  return finished(std::move(trace));
}

Result<Trace> read_trace(const std::filesystem::path& path) {
  KVLANE_ASSIGN(const std::string text, read_text_file(path, kTraceBytesMax));
  Result<Trace> trace = text.starts_with('{') ? parse_mooncake_trace(text) : parse_csv_trace(text);
  if (!trace.ok()) return trace.status().with_context(path.string());
  return trace;
}

}  // namespace kvlane
