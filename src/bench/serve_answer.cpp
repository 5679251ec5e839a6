// Lines, events, and the few members of an event that matter.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "server/json_text.h"
#include "server/openai_response.h"

namespace kvlane {

namespace {

using nlohmann::json;

// A member of an object, or null: nothing of a stranger's answer is taken for granted.
const json& member(const json& object, const char* name) {
  static const json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

int count_of(const json& value) {
  const bool usable = value.is_number_unsigned() && value <= INT32_MAX;
  return usable ? value.get<int>() : -1;
}

// The text of an event: of a completion, or of a chat, thoughts included.
std::string text_of(const json& choice) {
  std::string text;
  const json& delta = member(choice, "delta");
  for (const json* part : {&member(choice, "text"), &member(delta, "reasoning_content"),
                           &member(delta, "reasoning"), &member(delta, "content")}) {
    if (part->is_string()) text += part->get_ref<const std::string&>();
  }
  return text;
}

std::string error_message(const json& error) {
  constexpr std::size_t kMessageBytesMax = 300;
  const json& message = member(error, "message");
  return (message.is_string() ? message.get<std::string>() : to_text(error))
      .substr(0, kMessageBytesMax);
}

}  // namespace

int Answer::output_tokens() const {
  if (completion_tokens >= 0) return completion_tokens;
  return std::accumulate(counts.begin(), counts.end(), 0);
}

Status AnswerReader::add(std::string_view piece, double now) {
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    if (end == std::string_view::npos) {
      pending_ += piece;
      if (pending_.size() > kAnswerLineBytesMax)
        return corrupt("a line of the stream does not end");
      return {};
    }
    std::string_view line = piece.substr(0, end);
    if (!pending_.empty()) {
      pending_ += line;
      line = pending_;
    }
    KVLANE_TRY(read_line(line, now));
    pending_.clear();
    piece.remove_prefix(end + 1);
  }
  return {};
}

// Fields other than "data" (event names, ids, comments) do not matter here.
Status AnswerReader::read_line(std::string_view line, double now) {
  constexpr std::string_view kField = "data:";
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with(kField)) return {};
  line.remove_prefix(kField.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]") {
    ended_ = true;
    return {};
  }
  return read_event(line, now);
}

Status AnswerReader::read_event(std::string_view json_text, double now) {
  const Result<json> event = parse_json(json_text);
  if (!event.ok()) return corrupt("an event is " + event.status().message());
  const json& error = member(*event, "error");
  if (!error.is_null()) return unavailable(error_message(error));

  const json& choices = member(*event, "choices");
  if (choices.is_array() && !choices.empty()) {
    const json& choice = choices.front();
    const std::string text = text_of(choice);
    const json& ids = member(choice, "token_ids");
    const int told = ids.is_array() ? static_cast<int>(ids.size()) : 0;
    if (!text.empty() || told > 0) {
      answer_.times.push_back(now);
      answer_.counts.push_back(std::max(told, 1));
    }
    if (keep_text_) answer_.text += text;
    for (std::size_t i = 0; keep_ids_ && i < static_cast<std::size_t>(told); ++i) {
      const int id = count_of(ids[i]);
      if (id >= 0) answer_.ids.push_back(id);
    }
    ended_ = ended_ || member(choice, "finish_reason").is_string();
  }
  if (const json& usage = member(*event, "usage"); usage.is_object()) {
    answer_.prompt_tokens = count_of(member(usage, "prompt_tokens"));
    answer_.completion_tokens = count_of(member(usage, "completion_tokens"));
    answer_.cached_tokens =
        count_of(member(member(usage, "prompt_tokens_details"), "cached_tokens"));
  }
  const json& account = member(member(*event, "kvlane"), "account");
  if (account.is_object()) answer_.account = account_from_json(account);
  return {};
}

Status AnswerReader::finish() const {
  if (!ended_) return unavailable("the stream ended before the answer did");
  if (answer_.times.empty()) return corrupt("the answer has no token");
  return {};
}

}  // namespace kvlane
