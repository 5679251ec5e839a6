// Stamps of paced answers, and a small measurement of a gateway in this process.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gateway_bench.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

using std::chrono_literals::operator""ms;

TEST(TokenTimes, AreReadFromTheText) {
  const auto times = token_times_of("15 27 ");
  ASSERT_TRUE(times.has_value());
  ASSERT_EQ(times->size(), 2u);
  EXPECT_EQ((*times)[1].time_since_epoch().count(), 27);
  EXPECT_TRUE(token_times_of("")->empty());
  for (const char* text : {"15", "x ", "15  ", "1 two "}) {
    EXPECT_FALSE(token_times_of(text).has_value()) << text;
  }
}

RequestRecord paced(double due, std::vector<double> times, std::vector<int> counts,
                    std::string text) {
  RequestRecord record;
  record.due = due;
  record.answer.times = std::move(times);
  record.answer.counts = std::move(counts);
  record.answer.text = std::move(text);
  return record;
}

TEST(StreamLatencies, LeaveTheEdgesOut) {
  LoadOutcome outcome;
  outcome.start = TimePoint(SteadyClock::duration(0));
  // Handed over at 1, 2 and 3 s; read at 1.5 s and, two at once, at 3.25 s.
  const RequestRecord record = paced(0.5, {1.5, 3.25}, {1, 2}, "1000000000 2000000000 3000000000 ");
  outcome.records = {paced(0, {9}, {1}, "1 "), record, paced(0, {9}, {1}, "1 ")};
  const Result<StreamLatencies> found = stream_latencies(outcome, 1);
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->first_token.size(), 1u);
  EXPECT_DOUBLE_EQ(found->first_token[0], 1000);
  ASSERT_EQ(found->token.size(), 2u);
  EXPECT_DOUBLE_EQ(found->token[0], 1250);
  EXPECT_DOUBLE_EQ(found->token[1], 250);
}

TEST(StreamLatencies, RefuseWhatIsNotPaced) {
  LoadOutcome outcome;
  outcome.records = {paced(0, {1}, {2}, "1 ")};
  EXPECT_EQ(stream_latencies(outcome, 0).status().code(), Code::kCorrupt);
  outcome.records = {paced(0, {1}, {1}, "Once")};
  EXPECT_EQ(stream_latencies(outcome, 0).status().code(), Code::kCorrupt);
}

TEST(GatewayBench, MeasuresAGatewayOfThisProcess) {
  GatewayBenchOptions options;
  options.pace = {5ms, 5ms};
  options.streams = 4;
  options.tokens = 4;
  options.repeats = 1;
  auto workers = MockWorkers::start(options.pace);
  ASSERT_TRUE(workers.ok()) << workers.status().message();
  GatewayServiceOptions gateway;
  gateway.service.bind = {"127.0.0.1", 0};
  gateway.prefill = {(*workers)->prefill()};
  gateway.decode = {(*workers)->decode()};
  auto service = Service::start_gateway(std::move(gateway));
  ASSERT_TRUE(service.ok()) << service.status().message();
  options.direct = (*workers)->decode();
  options.gateway = {(*service)->address(), ""};
  options.gateway_cpu = [] { return 0.0; };
  const Result<Report> report = bench_gateway(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->results.size(), 11u);
  const Figure& ttft = report->results[0];
  EXPECT_EQ(ttft.name, "gateway_ttft_median_ms");
  EXPECT_GE(*ttft.baseline, 5 - 0.1);
  EXPECT_GE(ttft.value, 5 - 0.1);
  const Figure& added = report->results[1];
  EXPECT_EQ(added.name, "gateway_ttft_median_added_ms");
  EXPECT_NEAR(added.value, ttft.value - *ttft.baseline, 1e-9) << "one pair of runs only";
  EXPECT_EQ(added.goal, 1);
  EXPECT_EQ(added.met(), added.value <= 1);
}

TEST(GatewayBench, AFailureIsAnError) {
  GatewayBenchOptions options;
  options.pace = {1ms, 1ms};
  options.streams = 1;
  options.direct = {{"127.0.0.1", 1}, ""};
  EXPECT_EQ(bench_gateway(options).status().code(), Code::kUnavailable);
  options.tokens = 1;
  EXPECT_EQ(bench_gateway(options).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
