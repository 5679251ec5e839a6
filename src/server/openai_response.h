// Answers of OpenAI's completion APIs: one JSON object, or server-sent events.
//
// The extension field `kvlane` {account, kv} stands in the object, or in the last event with JSON
// before "data: [DONE]": the usage event if there is one, else the one with the finish_reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/openai_request.h"

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

// Formats the answer to one request. Not thread-safe.
class CompletionFormat {
 public:
  // `request_id` becomes part of the response's id. `created` is in seconds since 1970.
  CompletionFormat(const CompletionRequest& request, const std::string& request_id,
                   std::string model, std::int64_t created);

  // The events that an update of a stream gives, possibly none. The update may not have failed. The
  // account in update.finish is told as it is.
  std::string events(const Update& update);

  // The whole answer of a request that is not streamed. `kv_transfer_params` may be null.
  std::string whole(const Update& answer, const Finish& finish,
                    const nlohmann::json& kv_transfer_params) const;

 private:
  nlohmann::json skeleton(const char* object) const;
  nlohmann::json chunk(nlohmann::json choice) const;

  Api api_;
  bool include_usage_;
  bool token_ids_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
  bool role_sent_ = false;
};

}  // namespace kvlane
