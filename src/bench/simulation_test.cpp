// From plans to requests, and from records to figures.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulation.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/simulated_replicas.h"
#include "sim/sim_fixture.h"

namespace kvlane {
namespace {

Conversation conversation(double due, std::vector<std::pair<int, int>> turns) {
  Conversation made;
  made.due = due;
  for (const auto& [prompt, answer] : turns) {
    made.turns.push_back(
        {.parts = {{.tokens = prompt - 1}, {.tokens = 1}}, .output_tokens = answer});
  }
  return made;
}

TEST(Simulation, RequestsAreThoseOfThePlan) {
  Workload workload;
  workload.conversations = {conversation(0.5, {{10, 3}}), conversation(2, {{20, 1}})};
  workload.shortened = 1;
  const auto simulated = simulated_workload(workload);
  ASSERT_TRUE(simulated.ok());
  ASSERT_EQ(simulated->requests.size(), 2U);
  EXPECT_EQ(simulated->requests[0].arrival, 0.5);
  EXPECT_EQ(simulated->requests[0].prompt_tokens, 10);
  EXPECT_EQ(simulated->requests[0].answer_tokens, 3);
  EXPECT_EQ(simulated->requests[1].prompt_tokens, 20);
  EXPECT_EQ(simulated->shortened, 1U);
  EXPECT_EQ(simulated->requests[0].names, nullptr) << "nobody else has these tokens";
  workload.conversations.push_back(conversation(3, {{5, 1}, {5, 1}}));
  EXPECT_EQ(simulated_workload(workload).status().code(), Code::kUnsupported);
}

// Blocks of 512 tokens as Mooncake's traces have them, a prefix, and tokens of one's own.
TEST(Simulation, EqualPrefixesHaveEqualNames) {
  const auto names_of = [](std::vector<PromptPart> parts) {
    Workload workload;
    workload.conversations = {{0, {{.parts = std::move(parts), .output_tokens = 1}}}};
    const SimBlockNames names = simulated_workload(workload)->requests[0].names;
    return names ? *names : std::vector<std::uint64_t>();
  };
  const auto block = [](std::uint64_t id, int tokens = 512) {
    return PromptPart{Purpose::kTraceBlock, id, tokens};
  };
  const auto one = names_of({block(1), block(2), block(3, 100)});
  EXPECT_EQ(one.size(), 17U) << "complete blocks of 64";
  const auto longer = names_of({block(1), block(2), block(3)});
  EXPECT_EQ(longer.size(), 24U);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), longer.begin()));
  const auto other = names_of({block(1), block(4), block(3, 100)});
  EXPECT_TRUE(std::equal(one.begin(), one.begin() + 8, other.begin()));
  for (std::size_t i = 8; i < one.size(); ++i) EXPECT_NE(one[i], other[i]) << i;
  // Blocks of 102 tokens, as of a trace whose lengths are scaled: blocks of 64 begin in one and end
  // in another.
  const auto scaled = names_of({block(1, 102), block(2, 102), block(3, 102)});
  EXPECT_EQ(scaled.size(), 4U);
  const auto turned = names_of({block(1, 102), block(3, 102), block(2, 102)});
  EXPECT_EQ(scaled[0], turned[0]);
  EXPECT_NE(scaled[1], turned[1]);
  EXPECT_EQ(names_of({block(1, 102), block(9, 0), block(2, 102), block(3, 102)}), scaled)
      << "nothing between them";
  EXPECT_NE(names_of({{Purpose::kSharedPrefix, 1, 102}, block(2, 102), block(3, 102)})[0],
            scaled[0]);
  const PromptPart prefix{Purpose::kSharedPrefix, 0, 100};
  const auto first = names_of({prefix, {Purpose::kOwnTokens, 0, 500}});
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(first, names_of({prefix, {Purpose::kOwnTokens, 1, 40}}));
  EXPECT_TRUE(names_of({{Purpose::kSharedPrefix, 0, 63}, {Purpose::kOwnTokens, 0, 500}}).empty());
}

SimRecord record_of(double first_token, double completion) {
  SimRecord record;
  record.first_token = first_token;
  record.completion = completion;
  record.account.prefill = first_token;
  record.account.decode = completion - first_token;
  return record;
}

TEST(Simulation, SummarisesWhatFits) {
  const std::vector<SimRequest> requests = {{0, 10, 5}, {1, 10, 1}, {2, 10, 9}};
  SimOutcome outcome;
  outcome.seconds = 10;
  outcome.records = {record_of(1, 3), record_of(2, 2), {.fits = false}};
  const SimulationResult result = summarise_simulation({}, requests, {}, outcome);
  EXPECT_EQ(result.completed, 2U);
  EXPECT_EQ(result.refused, 1U);
  EXPECT_DOUBLE_EQ(result.completion.mean, 2.5);
  EXPECT_DOUBLE_EQ(result.ttft.mean, 1.5);
  EXPECT_EQ(result.tpot.count, 1U) << "one token has none behind it";
  EXPECT_DOUBLE_EQ(result.tpot.mean, 0.5);
  EXPECT_DOUBLE_EQ(result.account.prefill, 1.5);
  EXPECT_DOUBLE_EQ(result.account.total(), result.completion.mean);
  EXPECT_DOUBLE_EQ(result.tokens, 0.6);
  EXPECT_DOUBLE_EQ(result.rate, 1);
  EXPECT_DOUBLE_EQ(result.good, 2.0 / 3) << "what was refused is not good";
}

TEST(Simulation, CountsWhatReachesItsGoals) {
  const std::vector<SimRequest> requests = {{0, 10, 5}, {1, 10, 1}};
  SimOutcome outcome;
  outcome.records = {record_of(1, 3), record_of(2, 2)};
  const auto good = [&](const Goals& goals) {
    return summarise_simulation({}, requests, goals, outcome).good;
  };
  EXPECT_EQ(good({.ttft = 0.999}), 0);
  EXPECT_EQ(good({.ttft = 1}), 0.5);
  EXPECT_EQ(good({.tpot = 0.499}), 0.5) << "one token has none behind it";
  EXPECT_EQ(good({.tpot = 0.5}), 1);
  EXPECT_EQ(good({.ttft = 2, .e2el = 2.999}), 0.5);
}

// Prompts that take a second each, one at a time, and may wait for as long again: with constant
// gaps all do so up to one request a second, and beyond that queues grow.
TEST(Simulation, FindsTheRateAtWhichQueuesGrow) {
  const ClusterSetting cluster = plain_queue();
  SimulatedKv kv;
  kv.costs = cluster.kv;
  std::vector<SimRequest> requests;
  for (int i = 0; i < 2000; ++i) requests.push_back({20.0 * i, 1000, 1});
  const auto found = find_rate(cluster, kv, requests, {.ttft = 2}, 0.9, {});
  ASSERT_TRUE(found.ok());
  // 1,800 of them are done within 2 s if each is only 1 / 1800 s late for the one before.
  EXPECT_NEAR(found->rate, 1, 0.02);
  EXPECT_GE(found->good, 0.9);
  for (SimRequest& each : requests) each.arrival += 1e8;  // when it all begins does not matter
  EXPECT_EQ(find_rate(cluster, kv, requests, {.ttft = 2}, 0.9, {})->rate, found->rate);
  const auto never = find_rate(cluster, kv, requests, {.ttft = 0.999}, 0.9, {});
  EXPECT_EQ(never->rate, 0);
  EXPECT_EQ(never->completed, 2000U) << "what came of requests that come alone is told";
  const auto always = find_rate(cluster, kv, requests, {.ttft = 1e6}, 0.9, {});
  EXPECT_TRUE(always->unbounded);
  EXPECT_FALSE(found->unbounded);
  EXPECT_FALSE(find_rate(cluster, kv, {requests.data(), 1}, {.ttft = 0.999}, 0.9, {}).ok());
}

TEST(Simulation, NothingFitted) {
  SimOutcome outcome;
  outcome.records = {{.fits = false}};
  const std::vector<SimRequest> requests = {{0, 10, 5}};
  const SimulationResult result = summarise_simulation({}, requests, {}, outcome);
  EXPECT_EQ(result.completed, 0U);
  EXPECT_EQ(result.completion.mean, 0);
  SimulationSetting setting;
  setting.requests = {requests, 3};
  EXPECT_NE(simulation_text(setting, {&result, 1}).find("1 requests never fit in memory"),
            std::string::npos);
  EXPECT_NE(simulation_text(setting, {&result, 1}).find("3 requests were shortened"),
            std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(simulation_json(setting, {&result, 1})).is_discarded());
}

TEST(Simulation, TellsTheSameInBothForms) {
  SimulationSetting setting;
  setting.model = "m";
  setting.workload = "w";
  setting.requests.requests = {{0, 10, 5}, {1, 10, 5}};
  setting.cluster.prefill = *parse_replicas("2xL4");
  setting.cluster.decode = *parse_replicas("L4");
  SimOutcome outcome;
  outcome.seconds = 4;
  outcome.records = {record_of(1, 3), record_of(1, 3)};
  SimulatedKv rows;
  rows.costs.name = "bf16";
  rows.measured = true;
  SimulatedKv codes;
  codes.costs.name = "int4";
  std::vector<SimulationResult> results = {
      summarise_simulation(rows, setting.requests.requests, {}, outcome)};
  outcome.records = {record_of(1, 2.25), record_of(1, 2.25)};
  results.push_back(summarise_simulation(codes, setting.requests.requests, {}, outcome));
  const std::string text = simulation_text(setting, results);
  EXPECT_NE(text.find("prefill: 2 replicas of 1 L4"), std::string::npos);
  EXPECT_NE(text.find("decode: 1 replica of 1 L4"), std::string::npos);
  EXPECT_NE(text.find("25.0 %"), std::string::npos) << "saved: " << text;
  EXPECT_NE(text.find("int4: its speeds are assumed"), std::string::npos);
  EXPECT_EQ(text.find("bf16: its speeds are assumed"), std::string::npos);
  EXPECT_EQ(text.find("sliding window"), std::string::npos);
  setting.windowed = true;
  EXPECT_NE(simulation_text(setting, results).find("sliding window is not simulated"),
            std::string::npos);
  const auto json = nlohmann::json::parse(simulation_json(setting, results));
  EXPECT_EQ(json["results"].size(), 2U);
  EXPECT_EQ(json["results"][1]["kv"], "int4");
  EXPECT_EQ(json["results"][1]["speeds"], "assumed");
  EXPECT_EQ(json["results"][0]["completion"]["mean"], 3.0);
  EXPECT_EQ(json["results"][0]["completion"]["p99"], 3.0);
  EXPECT_EQ(json["results"][0]["account"]["prefill"], 1.0);
  EXPECT_EQ(json["results"][0]["account"].size(), kAccountFields.size());
}

}  // namespace
}  // namespace kvlane
