// Requests from plans, and what became of them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulation.h"

#include <array>

namespace kvlane {
namespace {

constexpr std::array<double, 3> kPercents = {50, 90, 99};

}  // namespace

Result<std::vector<SimRequest>> simulated_requests(const Workload& workload) {
  std::vector<SimRequest> requests;
  requests.reserve(workload.conversations.size());
  for (const Conversation& conversation : workload.conversations) {
    if (conversation.turns.size() > 1) {
      return unsupported(
          "conversations of several rounds are not simulated: their later prompts depend on "
          "answers; give one round");
    }
    const Turn& turn = conversation.turns.front();
    requests.push_back({conversation.due, turn.new_tokens(), turn.output_tokens});
  }
  return requests;
}

SimulationResult summarise_simulation(const SimulatedKv& kv, std::span<const SimRequest> requests,
                                      SimOutcome outcome) {
  SimulationResult result;
  result.kv = kv;
  std::vector<double> completion;
  std::vector<double> ttft;
  std::vector<double> tpot;
  double tokens = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const SimRecord& record = outcome.records[i];
    if (!record.fits) {
      ++result.refused;
      continue;
    }
    ++result.completed;
    const int answer = requests[i].answer_tokens;
    tokens += answer;
    completion.push_back(record.completion);
    ttft.push_back(record.first_token);
    if (answer > 1) tpot.push_back((record.completion - record.first_token) / (answer - 1));
    for (const AccountField& field : kAccountFields) {
      result.account.*field.seconds += record.account.*field.seconds;
    }
  }
  if (result.completed > 0) {
    for (const AccountField& field : kAccountFields) {
      result.account.*field.seconds /= double(result.completed);
    }
  }
  result.completion = summarise(std::move(completion), kPercents);
  result.ttft = summarise(std::move(ttft), kPercents);
  result.tpot = summarise(std::move(tpot), kPercents);
  if (outcome.seconds > 0) result.tokens = tokens / outcome.seconds;
  outcome.records = {};
  result.outcome = std::move(outcome);
  return result;
}

}  // namespace kvlane
