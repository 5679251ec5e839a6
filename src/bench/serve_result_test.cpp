// Sums, latencies, goodput and shares of records made by hand, and the forms they are told in.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "bench/serve_output.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

RequestRecord answered(double due, double allowed, double sent, std::vector<double> times) {
  RequestRecord record;
  record.due = due;
  record.allowed = allowed;
  record.sent = sent;
  record.ended = times.back() + 0.001;
  record.answer.counts.assign(times.size(), 1);
  record.answer.times = std::move(times);
  record.answer.prompt_tokens = 10;
  record.answer.completion_tokens = static_cast<int>(record.answer.times.size());
  record.answer.text = "x";
  return record;
}

// Two good ones, of which the second waited for a place; one refused, one cut off by the end.
LoadOutcome small_outcome() {
  LoadOutcome outcome;
  outcome.records.push_back(answered(0, 0, 0.001, {0.1, 0.2, 0.4}));
  outcome.records.push_back(answered(1, 2, 2.004, {3}));
  outcome.records.back().conversation = 3;
  outcome.records.back().turn = 1;
  outcome.records.back().answer.cached_tokens = 8;
  RequestRecord refused;
  refused.error = "http_429";
  refused.status = unavailable("the server answered 429: full");
  outcome.records.push_back(refused);
  RequestRecord cut;
  cut.unfinished = true;
  cut.status = aborted("the run was ended");
  outcome.records.push_back(cut);
  outcome.duration = 4;
  outcome.client_cpu = 0.5;
  return outcome;
}

TEST(Goals, AreReadInMilliseconds) {
  const Result<Goals> goals = parse_goals({"ttft:200", "tpot:50.5"});
  ASSERT_TRUE(goals.ok()) << goals.status().message();
  EXPECT_DOUBLE_EQ(*goals->ttft, 0.2);
  EXPECT_DOUBLE_EQ(*goals->tpot, 0.0505);
  EXPECT_FALSE(goals->e2el.has_value());
  EXPECT_FALSE(parse_goals({})->any());
}

TEST(Goals, ThatAreWrongAreNamed) {
  for (const char* text : {"ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:x", "ttft:1ms", "itl:5",
                           ":5", "ttft:inf", "ttft:nan", ""}) {
    const Result<Goals> goals = parse_goals({text});
    ASSERT_FALSE(goals.ok()) << text;
    EXPECT_THAT(goals.status().message(), HasSubstr("not '" + std::string(text) + "'"));
  }
}

TEST(Latencies, CountFromWhenARequestWasDue) {
  const RequestRecord record = answered(1, 2, 2.5, {3, 3.5, 4.5});
  EXPECT_DOUBLE_EQ(ttft_of(record), 2);
  EXPECT_DOUBLE_EQ(e2el_of(record), 3.5);
  EXPECT_THAT(itls_of(record), ElementsAre(0.5, 1.0));
  EXPECT_DOUBLE_EQ(*tpot_of(record), 0.75);
  EXPECT_FALSE(tpot_of(answered(0, 0, 0, {1})).has_value()) << "one token has no rest";
}

TEST(ServeResult, AddsUpWhatWasAnswered) {
  const ServeResult result = summarise_load(small_outcome(), {}, {99});
  EXPECT_EQ(result.completed, 2u);
  EXPECT_EQ(result.failed, 1u);
  EXPECT_EQ(result.unfinished, 1u);
  EXPECT_THAT(result.errors, ElementsAre(std::pair<const std::string, std::size_t>("http_429", 1)));
  EXPECT_EQ(result.input_tokens, 20u);
  EXPECT_EQ(result.output_tokens, 4u);
  EXPECT_DOUBLE_EQ(result.request_throughput, 0.5);
  EXPECT_DOUBLE_EQ(result.output_throughput, 1);
  EXPECT_DOUBLE_EQ(result.total_token_throughput, 6);
  EXPECT_DOUBLE_EQ(result.max_output_tokens_per_s, 3);
  EXPECT_EQ(result.max_concurrent_requests, 1u);
  EXPECT_DOUBLE_EQ(result.ttft.mean, 1050);
  EXPECT_EQ(result.tpot.count, 1u);
  EXPECT_EQ(result.itl.count, 2u);
  EXPECT_DOUBLE_EQ(result.e2el.max, 2000);
  EXPECT_DOUBLE_EQ(result.client_queue.mean, 500);
  EXPECT_NEAR(result.max_lateness, 4, 1e-9);
  EXPECT_FALSE(result.request_goodput.has_value());
}

TEST(ServeResult, GoodputCountsRequestsWithinAllGoals) {
  const auto goodput = [](const std::vector<std::string>& goals) {
    return *summarise_load(small_outcome(), *parse_goals(goals), {}).request_goodput;
  };
  EXPECT_DOUBLE_EQ(goodput({"ttft:3000"}), 0.5);
  EXPECT_DOUBLE_EQ(goodput({"ttft:101"}), 0.25);
  EXPECT_DOUBLE_EQ(goodput({"ttft:3000", "tpot:10"}), 0.25);  // one token has no time per token
  EXPECT_DOUBLE_EQ(goodput({"e2el:1"}), 0);
}

TEST(ServeResult, SharesAreMeansOverRequests) {
  LoadOutcome outcome = small_outcome();
  TimeAccount one;
  one.queue = 1;
  one.decode = 3;
  TimeAccount two;
  two.queue = 30;
  two.prefill = 10;
  outcome.records[0].answer.account = one;
  outcome.records[1].answer.account = two;
  const ServeResult result = summarise_load(outcome, {}, {});
  ASSERT_EQ(result.account_shares.size(), kAccountFields.size());
  EXPECT_EQ(result.account_shares[0].first, "queue");
  EXPECT_DOUBLE_EQ(result.account_shares[0].second, 0.5);
  double sum = 0;
  for (const auto& [name, share] : result.account_shares) sum += share;
  EXPECT_DOUBLE_EQ(sum, 1) << "no parts of intervals here, so the shares add up";
}

TEST(ServeResult, OfNothingIsZero) {
  const ServeResult result = summarise_load({}, *parse_goals({"ttft:1"}), {99});
  EXPECT_EQ(result.completed, 0u);
  EXPECT_EQ(result.request_throughput, 0);
  EXPECT_EQ(*result.request_goodput, 0);
  EXPECT_THAT(serve_text({}, result), HasSubstr("Successful requests:"));
}

TEST(ServeOutput, TextHasTheLabelsOfVllm) {
  ServeSetting setting;
  setting.request_rate = 2;
  setting.max_concurrency = 8;
  const ServeResult result =
      summarise_load(small_outcome(), *parse_goals({"ttft:101"}), {50, 99.9});
  const std::string text = serve_text(setting, result);
  for (const char* line : {"============ Serving Benchmark Result ============\n",
                           "Successful requests:                     2\n",
                           "Failed requests:                         1\n",
                           "Maximum request concurrency:             8\n",
                           "Request rate configured (RPS):           2.00\n",
                           "Benchmark duration (s):                  4.00\n",
                           "Request goodput (req/s):                 0.25\n",
                           "---------------Time to First Token----------------\n",
                           "Mean TTFT (ms):                          1050.00\n", "P50 TTFT (ms): ",
                           "P99.9 TTFT (ms): ", "  http_429:                              1\n",
                           "Unfinished requests:                     1\n",
                           "==================================================\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("interrupted")));
}

TEST(ServeOutput, JsonHasTheNamesOfVllm) {
  const LoadOutcome outcome = small_outcome();
  const ServeResult result = summarise_load(outcome, {}, {50, 99.9});
  ServeSetting setting;
  setting.request_rate = std::numeric_limits<double>::infinity();
  const Json object = Json::parse(serve_result_json(setting, result, &outcome));
  EXPECT_EQ(object["completed"], 2);
  EXPECT_EQ(object["request_rate"], "inf");
  EXPECT_EQ(object["max_concurrency"], nullptr);
  EXPECT_EQ(object["request_goodput"], nullptr);
  EXPECT_EQ(object["errors_by_kind"], Json({{"http_429", 1}}));
  for (const char* latency : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* statistic : {"mean", "median", "std", "p50", "p99.9"}) {
      EXPECT_TRUE(object.contains(std::string(statistic) + "_" + latency + "_ms"));
    }
    EXPECT_EQ(object[std::string("p50_") + latency + "_ms"],
              object[std::string("median_") + latency + "_ms"]);
  }
  EXPECT_EQ(object["conversations"], Json({0, 3, 0, 0}));
  EXPECT_EQ(object["rounds"], Json({1, 2, 1, 1}));
  EXPECT_EQ(object["input_lens"], Json({10, 10, 0, 0}));
  EXPECT_EQ(object["cached_lens"], Json({0, 8, 0, 0}));
  EXPECT_EQ(object["output_lens"], Json({3, 1, 0, 0}));
  EXPECT_EQ(object["itls"].size(), 4u);
  EXPECT_EQ(object["queue_times"], Json({0.0, 1.0, 0.0, 0.0}));
  EXPECT_EQ(object["errors"], Json({"", "", "http_429: the server answered 429: full",
                                    "unfinished: the run was ended"}));
  EXPECT_FALSE(Json::parse(serve_result_json(setting, result, nullptr)).contains("itls"));
}

}  // namespace
}  // namespace kvlane
