// Answers of OpenAI's completion APIs: one JSON object, or server-sent events, each about one
// choice.
//
// The extension field `kvlane` {account, kv} stands in the object, or in the last event with JSON
// before "data: [DONE]": the usage event if there is one, else the one with the finish_reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/openai_request.h"
#include "server/prompt.h"

namespace kvlane {

inline constexpr const char* kEventStreamType = "text/event-stream; charset=utf-8";
inline constexpr const char* kDoneEvent = "data: [DONE]\n\n";

// One server-sent event.
std::string sse_event(const std::string& json_text);

// Sets `other` so that the account adds up to `measured` seconds. When the intervals measured apart
// add up to more than that (clocks of several processes), `other` is 0 and the sum stands.
void close_account(TimeAccount& account, double measured);

// {queue, ..., other, total}, and back; unknown names are ignored, missing ones are 0.
nlohmann::json account_json(const TimeAccount& account);
TimeAccount account_from_json(const nlohmann::json& object);

// What an answer says of itself, beside what was generated.
struct AnswerHead {
  std::string request_id;  // becomes part of the answer's id
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
  int prompt_tokens = 0;
};

// Formats the answer to one request, with all its choices. Not thread-safe. `prompter` outlives it.
class CompletionFormat {
 public:
  CompletionFormat(const CompletionRequest& request, const Prompter& prompter, AnswerHead head);

  // The events that an update of a stream gives, possibly none. The update may not have failed. The
  // account in update.finish is told as it is.
  std::string events(const Update& update);

  // The whole answer of a request that is not streamed: one update for each choice, in order.
  // `kv_transfer_params` may be null.
  std::string whole(std::span<const Update> choices, const Finish& finish,
                    const nlohmann::json& kv_transfer_params);

 private:
  // What is kept of a choice from event to event.
  struct Choice {
    bool role_sent = false;
    std::int64_t characters = 0;  // of its text so far
  };
  nlohmann::json skeleton(const char* object) const;
  nlohmann::json chunk(nlohmann::json choice) const;
  nlohmann::json choice_of(const Update& update);
  nlohmann::json logprobs_of(const Update& update);
  bool tells_something(const Update& update) const;

  Api api_;
  bool include_usage_;
  bool continuous_usage_;
  bool token_ids_;
  bool logprobs_;
  const Prompter& prompter_;
  AnswerHead head_;
  std::string id_;
  std::vector<Choice> choices_;
  int tokens_ = 0;  // told so far, of all choices
};

}  // namespace kvlane
