// Queues as in textbooks, what is conserved, and what a link and memory do to requests.
// SPDX-License-Identifier: Apache-2.0
#include "sim/cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "base/test_sanitizers.h"
#include "format/shape.h"
#include "sim/sim_fixture.h"

namespace kvlane {
namespace {

double mean_queue(const SimOutcome& outcome) {
  double sum = 0;
  for (const SimRecord& record : outcome.records) sum += record.account.queue;
  return sum / double(outcome.records.size());
}

// Pollaczek and Khinchine: W = rho / (2 (1 - rho)) services.
TEST(Queue, ConstantServiceIsMD1) {
  for (const double load : every_other_if(kSanitized, std::vector{0.3, 0.6, 0.8})) {
    const SimOutcome outcome = run(plain_queue(), poisson(200'000, load, 1000, 1));
    EXPECT_NEAR(mean_queue(outcome), load / (2 * (1 - load)), 0.03 * load / (1 - load)) << load;
    EXPECT_NEAR(outcome.decode.busy, load, 0.01);
    EXPECT_EQ(outcome.decode.steps, 200'000);
  }
}

// W = rho / (1 - rho) services.
TEST(Queue, ExponentialServiceIsMM1) {
  for (const double load : every_other_if(kSanitized, std::vector{0.3, 0.6, 0.8})) {
    std::vector<SimRequest> requests = poisson(400'000, load, 1, 1);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const double service = exponential(7, static_cast<std::uint32_t>(i), 1);
      requests[i].prompt_tokens = std::max(1, static_cast<int>(std::lround(1000 * service)));
    }
    const SimOutcome outcome = run(plain_queue(), requests);
    EXPECT_NEAR(mean_queue(outcome), load / (1 - load), 0.06 * load / (1 - load)) << load;
  }
}

// Requests go to the replica with the fewest tokens to compute: with two replicas a request waits
// only when both compute, so for less than in a queue of its own.
TEST(Queue, TwoReplicasShareOneQueueOfArrivals) {
  ClusterSetting two = plain_queue();
  two.decode.count = 2;
  const double alone = mean_queue(run(plain_queue(), poisson(50'000, 0.8, 1000, 1)));
  const double shared = mean_queue(run(two, poisson(50'000, 1.6, 1000, 1)));
  EXPECT_LT(shared, 0.7 * alone);
  EXPECT_GT(shared, 0.3 * alone);
}

TEST(Cluster, AccountsAddUpAndBytesArrive) {
  for (const bool whole : {false, true}) {
    ClusterSetting setting = small_cluster();
    setting.push_whole = whole;
    const std::vector<SimRequest> requests = poisson(300, 4, 3000, 50);
    const SimOutcome outcome = run(setting, requests);
    for (const SimRecord& record : outcome.records) {
      EXPECT_NEAR(record.account.total(), record.completion, 1e-9);
      EXPECT_LE(record.first_token, record.completion);
      EXPECT_GT(record.account.transfer, 0);
      EXPECT_GE(record.account.wait_for_memory, 0);
      EXPECT_LE(record.account.prefill_attention + record.account.prefill_quantise,
                record.account.prefill);
      EXPECT_LE(record.account.decode_attention, record.account.decode);
    }
    EXPECT_NEAR(outcome.wire_bytes, 300.0 * 3000 * 131072, 1);
    EXPECT_EQ(outcome.prefill.stopped + outcome.decode.stopped, 0);
  }
}

TEST(Cluster, AloneARequestTakesWhatItsPartsTake) {
  ClusterSetting setting = small_cluster();
  setting.push_whole = true;
  setting.prefill.limits.batch_tokens_max = 1 << 20;
  const SimOutcome outcome = run(setting, {{0, 4000, 3}});
  const StepCost cost(setting.prefill.gpu, setting.model, {}, setting.kv, {});
  const auto seconds = [&](int tokens, int context) {
    const StepPart part{tokens, context};
    return cost.of({&part, 1}).total();
  };
  const SimRecord& record = outcome.records[0];
  EXPECT_NEAR(record.account.prefill, seconds(4000, 0), 1e-8);
  EXPECT_NEAR(record.account.transfer, 4000.0 * 131072 / 5e9, 1e-8);
  EXPECT_NEAR(record.account.decode, seconds(1, 4000) + seconds(1, 4001), 1e-8);
  EXPECT_EQ(record.account.queue, 0);
  EXPECT_EQ(record.first_token, record.account.prefill);
}

TEST(Cluster, CodecsAndCodesHaveTheirPartsOfTheAccount) {
  ClusterSetting setting = small_cluster();
  setting.push_whole = true;
  setting.prefill.limits.batch_tokens_max = 1 << 20;
  setting.kv.encode_share = 0.01;
  setting.kv.decode_share = 0.02;
  setting.kv.seal_share = 0.03;
  setting.kv.open_operations = 50;
  const SimRecord record = run(setting, {{0, 4000, 3}}).records[0];
  const StepCost cost(setting.prefill.gpu, setting.model, {}, setting.kv, {});
  const double values = 4000.0 * 32 * setting.model.kv_values();
  const TimeAccount& account = record.account;
  EXPECT_NEAR(account.encode, 2 * values / (0.01 * 2039e9), 1e-8);
  EXPECT_NEAR(account.decode_codec, 2 * values / (0.02 * 2039e9), 1e-8);
  const StepPart prompt{4000, 0};
  const StepTime prefill = cost.of({&prompt, 1});
  EXPECT_NEAR(account.prefill_quantise, prefill.seal, 1e-8);
  EXPECT_EQ(account.prefill_dequantise, 0) << "nothing is read of a first part";
  EXPECT_NEAR(account.prefill_attention, prefill.attention, 1e-8);
  const StepPart first{1, 4000};
  const StepPart second{1, 4001};
  EXPECT_NEAR(account.decode_dequantise, cost.of({&first, 1}).open + cost.of({&second, 1}).open,
              1e-8);
  EXPECT_GT(account.decode_dequantise, 1e-4);
  EXPECT_NEAR(account.total(), record.completion, 1e-9);
}

TEST(Cluster, UseIsOfTheTimeUntilTheLastAnswer) {
  ClusterSetting setting = small_cluster();
  setting.push_whole = true;
  setting.decode.count = 3;
  // The last one comes later and never fits.
  const SimOutcome outcome = run(setting, {{0, 4000, 3}, {1000, 4'000'000, 3}});
  const SimRecord& record = outcome.records[0];
  EXPECT_NEAR(outcome.seconds, record.completion, 1e-9);
  EXPECT_NEAR(outcome.prefill.network, record.account.transfer / record.completion / 2, 1e-6);
  EXPECT_NEAR(outcome.prefill.busy_most, record.account.prefill / record.completion, 1e-6);
  EXPECT_NEAR(outcome.prefill.busy, outcome.prefill.busy_most / 2, 1e-9);
  EXPECT_NEAR(outcome.decode.busy, record.account.decode / record.completion / 3, 1e-6);
}

// Who waits for memory gets it in the order in which KV was ready.
TEST(Cluster, WaitingForMemoryIsInOrder) {
  ClusterSetting setting = small_cluster();
  setting.prefill.count = setting.decode.count = 1;
  setting.prefill.limits.sequences_max = 1;
  limit_blocks(setting.decode, setting, 20);
  std::vector<SimRequest> requests(6, SimRequest{0, 1000, 100});
  const SimOutcome outcome = run(setting, requests);
  for (std::size_t i = 1; i < requests.size(); ++i) {
    EXPECT_GT(outcome.records[i].completion, outcome.records[i - 1].completion);
    EXPECT_GT(outcome.records[i].account.wait_for_memory,
              outcome.records[i - 1].account.wait_for_memory);
  }
}

// What leaves layer by layer is on its way while the rest is computed: where the link is faster
// than computing, only the last part is left to wait for.
TEST(Cluster, LayersTravelWhileOthersAreComputed) {
  ClusterSetting setting = small_cluster();
  setting.prefill.network_rate = setting.decode.network_rate = 50e9;
  const double layered = run(setting, {{0, 16000, 3}}).records[0].account.transfer;
  setting.push_whole = true;
  const double whole = run(setting, {{0, 16000, 3}}).records[0].account.transfer;
  EXPECT_NEAR(whole, 16000.0 * 131072 / 50e9, 1e-8);
  EXPECT_LT(layered, whole / 8);
  EXPECT_GT(layered, 0);
}

TEST(Cluster, OneFlowMayBeSlowerThanItsPorts) {
  ClusterSetting setting = small_cluster();
  setting.push_whole = true;
  setting.flow_rate_max = 0.625e9;
  const SimRecord record = run(setting, {{0, 4000, 3}}).records[0];
  EXPECT_NEAR(record.account.transfer, 4000.0 * 131072 / 0.625e9, 1e-8);
}

// Fewer blocks than requests want at once: they wait for memory, none is lost, and no more is taken
// than there is.
TEST(Cluster, RequestsWaitForMemory) {
  ClusterSetting setting = small_cluster();
  setting.decode.count = 1;
  limit_blocks(setting.decode, setting, 40);
  const std::vector<SimRequest> requests = poisson(60, 20, 1000, 100);
  const SimOutcome outcome = run(setting, requests);
  double waited = 0;
  for (const SimRecord& record : outcome.records) {
    EXPECT_TRUE(record.fits);
    EXPECT_NEAR(record.account.total(), record.completion, 1e-9);
    waited += record.account.wait_for_memory;
  }
  EXPECT_GT(waited, 10);
  EXPECT_EQ(outcome.decode.tokens_in_memory, 2560);
  EXPECT_LE(outcome.decode.blocks_peak, 1);
  EXPECT_GT(outcome.decode.blocks_peak, 0.7);
}

// Answers outgrow what is there: the last in rank gives way, is computed again, and ends.
TEST(Cluster, SequencesAreStoppedAndGoOn) {
  ClusterSetting setting = small_cluster();
  setting.prefill.count = 0;
  setting.decode.count = 1;
  limit_blocks(setting.decode, setting, 40);
  const SimOutcome outcome = run(setting, poisson(30, 50, 300, 1000));
  EXPECT_GT(outcome.decode.stopped, 0);
  for (const SimRecord& record : outcome.records) {
    EXPECT_GT(record.completion, record.first_token);
    EXPECT_NEAR(record.account.total(), record.completion, 1e-9);
  }
}

TEST(Cluster, WhatNeverFitsIsToldApart) {
  ClusterSetting setting = small_cluster();
  const SimOutcome outcome = run(setting, {{0, 4'000'000, 10}, {0, 100, 10}});
  EXPECT_FALSE(outcome.records[0].fits);
  EXPECT_EQ(outcome.records[0].completion, 0);
  EXPECT_TRUE(outcome.records[1].fits);
  EXPECT_GT(outcome.records[1].completion, 0);
  const SimOutcome none = run(setting, {{0, 4'000'000, 10}});
  EXPECT_EQ(none.decode.busy, 0);
  EXPECT_EQ(none.seconds, 0);
}

// It needs blocks where it is computed, and none elsewhere.
TEST(Cluster, OneTokenFitsWhereItsPromptDoes) {
  ClusterSetting setting = small_cluster();
  limit_blocks(setting.decode, setting, 40);
  const SimOutcome outcome = run(setting, {{0, 3000, 1}, {0, 3000, 2}});
  EXPECT_TRUE(outcome.records[0].fits);
  EXPECT_FALSE(outcome.records[1].fits);
}

TEST(Cluster, OneTokenNeedsNoDecodeWorker) {
  const SimOutcome outcome = run(small_cluster(), {{0, 500, 1}});
  EXPECT_EQ(outcome.wire_bytes, 0);
  EXPECT_EQ(outcome.decode.steps, 0);
  EXPECT_EQ(outcome.records[0].completion, outcome.records[0].first_token);
}

// Stages compute at the same time: four requests at once take less than twice what one takes alone,
// and as much work is done.
TEST(Cluster, StagesOverlap) {
  ClusterSetting setting = small_cluster();
  setting.prefill.count = 1;
  setting.prefill.parallel.pipeline = 4;
  setting.prefill.limits.batch_tokens_max = 1000;
  setting.decode.parallel.pipeline = 2;
  const SimOutcome one = run(setting, {{0, 4000, 20}});
  const double last = run(setting, {{0, 4000, 20}, {0, 4000, 20}, {0, 4000, 20}, {0, 4000, 20}})
                          .records[3]
                          .first_token;
  EXPECT_LT(last, 4 * one.records[0].first_token);
  EXPECT_GT(last, 2 * one.records[0].first_token);
  EXPECT_NEAR(one.records[0].account.total(), one.records[0].completion, 1e-9);
}

// A short step behind a long one, as the end of a prompt is, does not overtake it: nothing is known
// earlier than without it, and all KV crosses before the answer goes on.
TEST(Cluster, StepsKeepTheirOrderInAPipeline) {
  ClusterSetting setting = small_cluster();
  setting.prefill.parallel.pipeline = 4;
  setting.prefill.network_rate = setting.decode.network_rate = 1e9;
  const SimOutcome even = run(setting, {{0, 4096, 5}});
  const SimOutcome odd = run(setting, {{0, 4100, 5}});
  EXPECT_GT(odd.records[0].first_token, even.records[0].first_token);
  EXPECT_NEAR(odd.wire_bytes, 4100.0 * 131072, 1);
  EXPECT_GT(odd.records[0].account.transfer, 0);
  const SimOutcome many = run(setting, poisson(100, 3, 2050, 20));
  EXPECT_NEAR(many.wire_bytes, 100 * 2050.0 * 131072, 10);
}

TEST(Cluster, EqualReplicasTakeTurns) {
  ClusterSetting setting = small_cluster();
  std::vector<SimRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back({100.0 * i, 4000, 50});
  const SimOutcome outcome = run(setting, requests);
  // Each of two is as busy as the other, though nobody ever waits.
  setting.prefill.count = setting.decode.count = 1;
  const SimOutcome one = run(setting, requests);
  EXPECT_NEAR(outcome.prefill.busy, one.prefill.busy / 2, 1e-9);
  EXPECT_EQ(outcome.prefill.busy_most, outcome.prefill.busy);
  EXPECT_EQ(outcome.decode.busy_most, outcome.decode.busy);
}

SimBlockNames names_of(int first, int count) {
  std::vector<std::uint64_t> names(count);
  std::iota(names.begin(), names.end(), std::uint64_t(first));
  return std::make_shared<const std::vector<std::uint64_t>>(std::move(names));
}

// The second request begins like the first one: half of it is found, and all of it crosses.
TEST(Cluster, WhatIsFoundIsNotComputedAndTravels) {
  for (const bool whole : {false, true}) {
    ClusterSetting setting = small_cluster();
    setting.push_whole = whole;
    setting.prefill.count = setting.decode.count = 1;
    const SimBlockNames half = names_of(1, 32);
    const SimOutcome outcome = run(setting, {{0, 4096, 5, names_of(1, 64)}, {100, 4096, 5, half}});
    EXPECT_EQ(outcome.prefill.found, 2048);
    EXPECT_NEAR(outcome.wire_bytes, 2 * 4096.0 * 131072, 1);
    const double first = outcome.records[0].account.prefill;
    EXPECT_LT(outcome.records[1].account.prefill, 0.6 * first);
    EXPECT_GT(outcome.records[1].account.prefill, 0.4 * first);
    EXPECT_NEAR(outcome.records[1].account.total(), outcome.records[1].completion, 1e-9);
  }
}

// The same prompt again and again, where there is room for little more than one.
TEST(Cluster, MemoryIsForThoseWhoComputeFirst) {
  ClusterSetting setting = small_cluster();
  setting.prefill.count = 0;
  setting.decode.count = 1;
  limit_blocks(setting.decode, setting, 20);
  std::vector<SimRequest> requests;
  for (int i = 0; i < 20; ++i) {
    // Two prompts by turns, 16 blocks each: of the one before the last some blocks are left.
    requests.push_back({100.0 * i, 1024, 10, names_of(100 * (i % 2), 16)});
  }
  const SimOutcome outcome = run(setting, requests);
  EXPECT_GT(outcome.decode.found, 18 * 2 * kBlockTokens);
  EXPECT_LT(outcome.decode.found, 18 * 5 * kBlockTokens);
  EXPECT_LE(outcome.decode.blocks_peak, 1);
  for (SimRequest& each : requests) each.names = names_of(7, 16);
  EXPECT_EQ(run(setting, requests).decode.found, 19 * 15 * kBlockTokens) << "one token is computed";
}

TEST(Cluster, TheSameInputGivesTheSameOutcome) {
  const std::vector<SimRequest> requests = poisson(200, 6, 2000, 80);
  const SimOutcome one = run(small_cluster(), requests);
  const SimOutcome other = run(small_cluster(), requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(one.records[i].completion, other.records[i].completion);
    EXPECT_EQ(one.records[i].first_token, other.records[i].first_token);
  }
  EXPECT_EQ(one.wire_bytes, other.wire_bytes);
}

TEST(Cluster, SaysWhatIsImpossible) {
  ClusterSetting setting = small_cluster();
  setting.prefill.gpu = gpu_named("T4");
  const Result<SimOutcome> small = simulate(setting, {}, {});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().message(), "the weights, 16 GB, leave no room for KV on 1 x T4");
  setting = small_cluster();
  setting.decode.count = 0;
  EXPECT_EQ(simulate(setting, {}, {}).status().message(), "there is no replica that decodes");
  setting = small_cluster();
  setting.decode.parallel.tensor = 3;
  EXPECT_EQ(simulate(setting, {}, {}).status().message(), "tp=3 does not divide 32 query heads");
  setting.decode.parallel = {.tensor = 1, .pipeline = 33};
  EXPECT_EQ(simulate(setting, {}, {}).status().message(), "pp=33 is more than 32 layers");
}

TEST(Cluster, EndsAfterThirtyYears) {
  EXPECT_EQ(simulate(small_cluster(), std::vector<SimRequest>{{1e300, 10, 10}}, {}).status().code(),
            Code::kInvalidArgument);
  ClusterSetting slow = plain_queue();
  slow.decode.gpu.matrix_rate = 1e-3;
  EXPECT_EQ(simulate(slow, poisson(10, 1, 1000, 1), {}).status().code(), Code::kInvalidArgument);
  ClusterSetting stages = small_cluster();
  stages.prefill.parallel.pipeline = 32;
  stages.prefill.gpu.matrix_rate = 1e-3;
  EXPECT_EQ(simulate(stages, poisson(10, 1, 1000, 5), {}).status().code(), Code::kInvalidArgument);
}

TEST(Cluster, ProgressCountsEveryRequest) {
  std::vector<std::size_t> seen;
  const auto outcome = simulate(small_cluster(), poisson(20, 5, 100, 5),
                                [&](std::size_t count) { seen.push_back(count); });
  ASSERT_TRUE(outcome.ok());
  std::vector<std::size_t> all(20);
  std::iota(all.begin(), all.end(), 1U);
  EXPECT_EQ(seen, all);
}

}  // namespace
}  // namespace kvlane
