// An engine without a model, for measuring everything around one: prompts take a fixed time, then
// tokens come at a fixed pace, whatever the load.
//
// The text of a token is the time at which it was handed over, so that whoever reads it in the same
// process (or on the same machine) knows how long it was on its way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "server/prompt.h"

namespace kvlane {

struct Pace {
  std::chrono::microseconds prefill{20'000};         // from a request to its first token
  std::chrono::microseconds token_interval{40'000};  // from a token to the next
};

// Tells decode engines of this process that the "KV" of a transfer is there. Thread-safe.
class PacedWire {
 public:
  PacedWire();
  ~PacedWire();
  void deliver(const TransferId& id);
  // Calls `on_arrival` once, at once if it has been delivered already. Not from under a lock of the
  // caller's that `on_arrival` takes.
  void expect(const TransferId& id, std::function<void()> on_arrival);
  // Nobody waits for it any more; a call that has begun may still end later.
  void forget(const TransferId& id);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One thread serves any number of requests. `wire` may be null for an engine that does both itself,
// and outlives it.
std::unique_ptr<Engine> make_paced_engine(Pace pace, PacedWire* wire);

// Tokens of a paced answer's text: when each was handed over, in order. Nothing when `text` is not
// such a text.
std::optional<std::vector<TimePoint>> token_times_of(const std::string& text);

// Takes prompts as ids; text is one token a byte.
class PacedPrompter : public Prompter {
 public:
  Result<std::vector<std::int32_t>> encode_text(const std::string& text,
                                                bool add_special) const override;
  Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages,
                                                bool add_generation_prompt) const override;
  std::string token_bytes(std::int32_t id) const override;
  bool is_special(std::int32_t) const override { return false; }
  std::int32_t bos() const override { return 0; }
  int vocabulary() const override { return 1 << 15; }
  int context() const override { return 1 << 20; }
};

}  // namespace kvlane
