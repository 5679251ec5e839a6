// Requests from plans, and what became of them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "format/checksum.h"
#include "format/shape.h"

namespace kvlane {
namespace {

constexpr std::array<double, 3> kPercents = {50, 90, 99};

// Rates, a second, that are looked for: up to more than any cluster's, from so few that all
// requests take as long as a simulation may.
constexpr double kRateMax = 1e7;
constexpr double kRateFactor = 1.01;

bool is_good(const SimRequest& request, const SimRecord& record, const Goals& goals) {
  const auto within = [](double seconds, const std::optional<double>& most) {
    return !most || seconds <= *most;
  };
  const int behind = request.answer_tokens - 1;
  const double tpot = behind > 0 ? (record.completion - record.first_token) / behind : 0;
  return record.fits && within(record.first_token, goals.ttft) && within(tpot, goals.tpot) &&
         within(record.completion, goals.e2el);
}

// Requests in the seconds from the first to the last.
double rate_of(std::span<const SimRequest> requests) {
  if (requests.size() < 2) return 0;
  const double seconds = requests.back().arrival - requests.front().arrival;
  return seconds > 0 ? double(requests.size() - 1) / seconds : 0;
}

// Names of the blocks that others may have: up to the last one of tokens that are not this turn's
// own. A name stands for all tokens up to its block's end.
SimBlockNames block_names(const Turn& turn) {
  int shared = 0;
  int tokens = 0;
  for (const PromptPart& part : turn.parts) {
    tokens += part.tokens;
    if (part.purpose != Purpose::kOwnTokens) shared = tokens;
  }
  if (shared < kBlockTokens) return nullptr;
  std::vector<std::uint64_t> names;
  std::vector<std::uint64_t> block = {0};  // the name before it, then runs of its tokens
  int missing = kBlockTokens;
  for (const PromptPart& part : turn.parts) {
    for (int first = 0; first < part.tokens && int(names.size()) < shared / kBlockTokens;) {
      const int run = std::min(missing, part.tokens - first);
      const auto run_of = {std::uint64_t(part.purpose), part.index, std::uint64_t(first),
                           std::uint64_t(run)};
      block.insert(block.end(), run_of);
      first += run;
      missing -= run;
      if (missing > 0) continue;
      names.push_back(xxh3_64(std::as_bytes(std::span(block))));
      block = {names.back()};
      missing = kBlockTokens;
    }
  }
  return std::make_shared<const std::vector<std::uint64_t>>(std::move(names));
}

}  // namespace

Result<SimulatedWorkload> simulated_workload(const Workload& workload) {
  SimulatedWorkload simulated;
  simulated.shortened = workload.shortened;
  simulated.requests.reserve(workload.conversations.size());
  for (const Conversation& conversation : workload.conversations) {
    if (conversation.turns.size() > 1) {
      return unsupported(
          "conversations of several rounds are not simulated: their later prompts depend on "
          "answers; give --rounds 1");
    }
    const Turn& turn = conversation.turns.front();
    simulated.requests.push_back(
        {conversation.due, turn.new_tokens(), turn.output_tokens, block_names(turn)});
  }
  return simulated;
}

SimulationResult summarise_simulation(const SimulatedKv& kv, std::span<const SimRequest> requests,
                                      const Goals& goals, SimOutcome outcome) {
  SimulationResult result;
  result.kv = kv;
  result.rate = rate_of(requests);
  std::vector<double> completion;
  std::vector<double> ttft;
  std::vector<double> tpot;
  double tokens = 0;
  double prompts = 0;
  std::size_t good = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const SimRecord& record = outcome.records[i];
    good += is_good(requests[i], record, goals) ? 1 : 0;
    if (!record.fits) {
      ++result.refused;
      continue;
    }
    ++result.completed;
    const int answer = requests[i].answer_tokens;
    tokens += answer;
    prompts += requests[i].prompt_tokens;
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
  // Where prompts are computed: who decodes what others computed looks for nothing.
  const auto found = outcome.prefill.found + outcome.decode.found;
  if (prompts > 0) result.found = double(found) / prompts;
  if (!requests.empty()) result.good = double(good) / double(requests.size());
  if (outcome.seconds > 0) result.tokens = tokens / outcome.seconds;
  outcome.records = {};
  result.outcome = std::move(outcome);
  return result;
}

Result<SimulationResult> find_rate(const ClusterSetting& cluster, const SimulatedKv& kv,
                                   std::span<const SimRequest> requests, const Goals& goals,
                                   double share, const std::function<void(std::size_t)>& progress) {
  const double given = rate_of(requests);
  if (given == 0) {
    return invalid_argument("a rate can be looked for where requests come one after another");
  }
  ClusterSetting setting = cluster;
  setting.kv = kv.costs;
  std::vector<SimRequest> scaled(requests.begin(), requests.end());
  SimulationResult best;
  // Whether it is good enough, which is then the best so far.
  const auto try_rate = [&](double rate) -> Result<bool> {
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      scaled[i].arrival = (requests[i].arrival - requests.front().arrival) * given / rate;
    }
    KVLANE_ASSIGN(SimOutcome outcome, simulate(setting, scaled, progress));
    SimulationResult result = summarise_simulation(kv, scaled, goals, std::move(outcome));
    const bool enough = result.good >= share;
    if (enough || best.kv.costs.name.empty()) best = std::move(result);
    return enough;
  };
  double low = double(requests.size()) / (0.5 * kSimSecondsMax);
  double high = kRateMax;
  KVLANE_ASSIGN(const bool possible, try_rate(low));
  if (!possible) {
    best.rate = 0;
    return best;
  }
  KVLANE_ASSIGN(const bool unbounded, try_rate(high));
  if (unbounded) {
    best.unbounded = true;
    return best;
  }
  while (high / low > kRateFactor) {
    const double middle = std::sqrt(low * high);
    KVLANE_ASSIGN(const bool enough, try_rate(middle));
    (enough ? low : high) = middle;
  }
  return best;
}

}  // namespace kvlane
