// What a model answers to a prompt, and how likely it holds a given answer, with its KV cache in
// one format.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "eval/format_runner.h"
#include "kvlane/status.h"

namespace kvlane {

// The first of the most likely tokens.
std::int32_t most_likely(std::span<const float> logits);

// Called with the index of a token and the logits after it, valid until the call returns.
using OnLogits = std::function<Status(std::size_t index, std::span<const float> logits)>;

// Appends all of `tokens`, in as many passes as that takes, and hands over the logits from index
// `first` on; empty functions are told nothing. Logits that are not finite are an error.
Status append_all(FormatRunner& runner, std::span<const std::int32_t> tokens, std::size_t first,
                  const OnLogits& on_logits);

struct GreedyLimits {
  int tokens_max = 0;
  std::span<const std::int32_t> eos;         // any of them ends the answer and is no part of it
  std::function<bool(std::int32_t)> enough;  // told each token; true: it was the last. May be empty
};

// Forgets what the runner read, reads `prompt` (at least one token), ends it and goes on with the
// most likely token each time.
Result<std::vector<std::int32_t>> greedy_answer(FormatRunner& runner,
                                                std::span<const std::int32_t> prompt,
                                                const GreedyLimits& limits);

// How a model takes an answer that is put into its mouth, token by token.
struct AnswerScore {
  double log_probability = 0;  // of all tokens, nats
  int tokens = 0;
  int top = 0;  // tokens that are the most likely one at their place

  // Greedy decoding gives this answer, token for token.
  bool is_greedy() const { return top == tokens; }
};

// Forgets what the runner read, reads `prompt` (at least one token), ends it and reads `answer`.
Result<AnswerScore> score_answer(FormatRunner& runner, std::span<const std::int32_t> prompt,
                                 std::span<const std::int32_t> answer);

}  // namespace kvlane
