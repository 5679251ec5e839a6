// What a load generator will ask: every request with its lengths, planned before the first is sent.
//
// A plan is a function of its options (seed included) alone, never of how fast a server answers.
// Prompts are named, not stored: an hour of traffic is more tokens than memory should hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/lengths.h"
#include "bench/random_stream.h"
#include "bench/trace.h"
#include "kvlane/status.h"

namespace kvlane {

// Tokens 0 ... tokens - 1 of the sequence that (purpose, index) names: see append_token_ids.
struct PromptPart {
  Purpose purpose = Purpose::kOwnTokens;
  std::uint64_t index = 0;
  int tokens = 0;
};

// One request of a conversation. Its prompt is everything before it, answers included, and then
// these parts.
struct Turn {
  std::vector<PromptPart> parts;
  int output_tokens = 1;

  int new_tokens() const {
    int sum = 0;
    for (const PromptPart& part : parts) sum += part.tokens;
    return sum;
  }
};

// Requests that follow each other; most have one.
struct Conversation {
  double due = 0;  // seconds after the start; of no meaning in a closed loop
  std::vector<Turn> turns;
};

struct Workload {
  std::vector<Conversation> conversations;  // ascending in `due`
  double think_time = 0;                    // seconds between an answer and the next turn
  std::uint64_t seed = 0;
  std::size_t requests = 0;   // turns of all conversations
  std::size_t shortened = 0;  // requests that were cut, or dropped, to fit the context
};

// Prompts of random tokens with drawn lengths.
struct DrawnWorkload {
  LengthDistribution input;  // of a turn's new tokens, without the prefix
  LengthDistribution output;
  int prefix_tokens = 0;   // in front of a conversation's first prompt, shared with others
  int prefixes = 1;        // how many different ones there are
  double prefix_zipf = 0;  // the k-th is taken with probability ~ k^-zipf; 0: all alike
  int rounds = 1;          // turns of a conversation
  double think_time = 0;
};

// How many requests there are, and how long they may be.
struct WorkloadLimits {
  std::size_t requests = 0;    // the last conversation may have fewer turns than the others
  std::optional<int> context;  // most tokens of prompt and answer together
};

// Exactly limits.requests requests, fewer when turns do not fit the context. A first turn that does
// not fit is cut: the answer to half of the context at most, then the end of the prompt. Later
// turns that do not fit are dropped. kInvalidArgument when the context has no room for two tokens.
Result<Workload> draw_workload(const DrawnWorkload& drawn, const WorkloadLimits& limits,
                               std::uint64_t seed);

// The first limits.requests requests of a trace (0: all), at its times multiplied by `time_scale`,
// all lengths and blocks multiplied by `length_scale`.
Result<Workload> replay_trace(const Trace& trace, double time_scale, double length_scale,
                              const WorkloadLimits& limits, std::uint64_t seed);

// `count` requests with the lengths of the workload's first ones, and tokens of their own: they
// warm a server up and leave nothing in its prefix cache that the workload could find.
std::vector<Turn> warmup_turns(const Workload& workload, std::size_t count);

// The token ids of a turn's parts.
void append_turn_ids(const Turn& turn, std::uint64_t seed, int vocabulary,
                     std::vector<std::int32_t>& out);

}  // namespace kvlane
