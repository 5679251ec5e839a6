// Plans: drawn or replayed, then cut to the context.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlane {

namespace {

// Index of the shared prefix with probability ~ (index + 1)^-zipf.
class PrefixChoice {
 public:
  PrefixChoice(int prefixes, double zipf) : sums_(static_cast<std::size_t>(prefixes)) {
    double sum = 0;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      sum += std::pow(static_cast<double>(i + 1), -zipf);
      sums_[i] = sum;
    }
  }
  std::uint64_t draw(RandomStream& random) const {
    const double point = random.unit() * sums_.back();
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), point);
    return static_cast<std::uint64_t>(std::min(found, sums_.end() - 1) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

void cut_prompt(Turn& turn, int tokens) {
  int room = tokens;
  for (PromptPart& part : turn.parts) {
    part.tokens = std::min(part.tokens, room);
    room -= part.tokens;
  }
  std::erase_if(turn.parts, [](const PromptPart& part) { return part.tokens == 0; });
}

// Returns how many requests were changed or dropped.
std::size_t fit(Conversation& conversation, int context) {
  std::size_t changed = 0;
  Turn& first = conversation.turns.front();
  if (first.new_tokens() + first.output_tokens > context) {
    first.output_tokens = std::min(first.output_tokens, context / 2);
    cut_prompt(first, context - first.output_tokens);
    changed = 1;
  }
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < conversation.turns.size(); ++i) {
    tokens += conversation.turns[i].new_tokens() + conversation.turns[i].output_tokens;
    if (tokens <= context) continue;
    changed += conversation.turns.size() - i;
    conversation.turns.resize(i);
  }
  return changed;
}

Result<Workload> finished(Workload workload, const WorkloadLimits& limits) {
  constexpr int kContextMin = 2;  // a token to read and one to say
  if (limits.context && *limits.context < kContextMin) {
    return invalid_argument("a context of " + std::to_string(*limits.context) +
                            " tokens has no room for a prompt and an answer");
  }
  for (Conversation& conversation : workload.conversations) {
    if (limits.context) workload.shortened += fit(conversation, *limits.context);
    workload.requests += conversation.turns.size();
  }
  return workload;
}

int scaled(int tokens, double scale) {
  const double product = std::round(tokens * scale);
  return static_cast<int>(std::clamp(product, 1.0, double{kTraceTokensMax}));
}

}  // namespace

Result<Workload> draw_workload(const DrawnWorkload& drawn, const WorkloadLimits& limits,
                               std::uint64_t seed) {
  Workload workload;
  workload.seed = seed;
  workload.think_time = drawn.think_time;
  const PrefixChoice prefix(drawn.prefixes, drawn.prefix_zipf);
  for (std::uint64_t request = 0; request < limits.requests;) {
    RandomStream choice(seed, Purpose::kPrefixChoice, request);
    Conversation conversation;
    for (int round = 0; round < drawn.rounds && request < limits.requests; ++round, ++request) {
      RandomStream lengths(seed, Purpose::kLengths, request);
      Turn turn;
      if (round == 0 && drawn.prefix_tokens > 0) {
        turn.parts.push_back({Purpose::kSharedPrefix, prefix.draw(choice), drawn.prefix_tokens});
      }
      turn.parts.push_back({Purpose::kOwnTokens, request, draw_length(drawn.input, lengths)});
      turn.output_tokens = draw_length(drawn.output, lengths);
      conversation.turns.push_back(std::move(turn));
    }
    workload.conversations.push_back(std::move(conversation));
  }
  return finished(std::move(workload), limits);
}

Result<Workload> replay_trace(const Trace& trace, double time_scale, double length_scale,
                              const WorkloadLimits& limits, std::uint64_t seed) {
  Workload workload;
  workload.seed = seed;
  const int block_tokens = scaled(kTraceBlockTokens, length_scale);
  for (const TraceRequest& request : trace.requests) {
    const std::size_t index = workload.conversations.size();
    if (limits.requests > 0 && index == limits.requests) break;
    Turn turn;
    int left = scaled(request.input_tokens, length_scale);
    for (const std::uint64_t block : request.blocks) {
      const int tokens = std::min(left, block_tokens);
      if (tokens > 0) turn.parts.push_back({Purpose::kTraceBlock, block, tokens});
      left -= tokens;
    }
    // No blocks, or rounding left some tokens over.
    if (left > 0) turn.parts.push_back({Purpose::kOwnTokens, index, left});
    turn.output_tokens = scaled(request.output_tokens, length_scale);
    workload.conversations.push_back({request.time * time_scale, {std::move(turn)}});
  }
  return finished(std::move(workload), limits);
}

std::vector<Turn> warmup_turns(const Workload& workload, std::size_t count) {
  std::vector<Turn> turns;
  const std::size_t known = workload.conversations.size();
  for (std::size_t i = 0; i < count && known > 0; ++i) {
    const Turn& like = workload.conversations[i % known].turns.front();
    turns.push_back({{{Purpose::kWarmup, i, like.new_tokens()}}, like.output_tokens});
  }
  return turns;
}

void append_turn_ids(const Turn& turn, std::uint64_t seed, int vocabulary,
                     std::vector<std::int32_t>& out) {
  for (const PromptPart& part : turn.parts) {
    append_token_ids(seed, part.purpose, part.index, 0, static_cast<std::size_t>(part.tokens),
                     vocabulary, out);
  }
}

}  // namespace kvlane
