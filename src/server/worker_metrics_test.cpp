// A worker's metrics: what one request adds to them, and what Prometheus and vLLM's dashboards
// read.
// SPDX-License-Identifier: Apache-2.0
#include "server/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "server/metrics_fixture.h"

namespace kvlane {
namespace {

using std::chrono::milliseconds;

class WorkerMetricsTest : public testing::Test {
 protected:
  std::string text(const EngineLoad& load = {}) const { return metrics_->text(load).body; }
  RequestMeter meter(int n = 1) const { return {metrics_, start_, 50, n}; }
  static Update token(int choice) {
    Update update;
    update.choice = choice;
    update.tokens = {5};
    return update;
  }
  static Update last(Status error = {}) {
    Update update;
    Finish& finish = update.finish.emplace();
    finish.error = std::move(error);
    finish.completion_tokens = 3;
    finish.account.queue = 0.25;
    finish.account.prefill = 0.5;
    finish.kv = {1000, 700, "splitzip"};
    if (finish.error.ok()) update.ended = FinishReason::kStop;
    return update;
  }

  std::shared_ptr<WorkerMetrics> metrics_ = std::make_shared<WorkerMetrics>(Role::kBoth, "tiny");
  TimePoint start_ = SteadyClock::now();
};

TEST_F(WorkerMetricsTest, OneRequestFromItsArrivalToItsEnd) {
  RequestMeter request = meter();
  request.update(token(0), start_ + milliseconds(2000));
  request.update(token(0), start_ + milliseconds(2100));
  Update two = token(0);
  two.tokens = {6, 7};
  request.update(two, start_ + milliseconds(2500));
  request.update(last(), start_ + milliseconds(4000));

  const std::string all = text();
  EXPECT_EQ(sample(all, "kvlane_time_to_first_token_seconds_count"), 1);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_time_to_first_token_seconds_sum"), 2);
  EXPECT_EQ(sample(all, "kvlane_time_to_first_token_seconds_bucket", {"le=\"1\""}), 0);
  EXPECT_EQ(sample(all, "kvlane_time_to_first_token_seconds_bucket", {"le=\"2.5\""}), 1);
  EXPECT_EQ(sample(all, "kvlane_inter_token_latency_seconds_count"), 3) << "two came together";
  EXPECT_NEAR(sample(all, "kvlane_inter_token_latency_seconds_sum"), 0.5, 1e-9);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_request_seconds_sum"), 4);
  EXPECT_EQ(sample(all, "kvlane_prompt_tokens_total"), 50);
  EXPECT_EQ(sample(all, "kvlane_generation_tokens_total"), 4);
  EXPECT_EQ(sample(all, "kvlane_request_prompt_tokens_sum"), 50);
  EXPECT_EQ(sample(all, "kvlane_request_generation_tokens_sum"), 3);
  EXPECT_EQ(sample(all, "kvlane_answers_finished_total", {"reason=\"stop\""}), 1);
  EXPECT_EQ(sample(all, "kvlane_answers_finished_total", {"reason=\"length\""}), 0);
  EXPECT_EQ(sample(all, "kvlane_transfer_raw_bytes_total"), 1000);
  EXPECT_EQ(sample(all, "kvlane_transfer_shipped_bytes_total"), 700);
  EXPECT_EQ(sample(all, "kvlane_transfers_total", {"codec=\"splitzip\""}), 1);
  const auto interval = [&](const std::string& name) {
    return sample(all, "kvlane_request_account_seconds_sum", {"interval=\"" + name + "\""});
  };
  EXPECT_DOUBLE_EQ(interval("queue"), 0.25);
  EXPECT_DOUBLE_EQ(interval("prefill"), 0.5);
  EXPECT_DOUBLE_EQ(interval("other"), 4 - 0.75) << "the account adds up to what was measured";
}

TEST_F(WorkerMetricsTest, AnswersOfOneRequestAreTimedApart) {
  RequestMeter request = meter(2);
  request.update(token(0), start_ + milliseconds(100));
  request.update(token(1), start_ + milliseconds(150));
  request.update(token(0), start_ + milliseconds(200));
  request.update(token(1), start_ + milliseconds(350));
  Update end;
  end.choice = 1;
  end.ended = FinishReason::kLength;
  request.update(end, start_ + milliseconds(400));
  request.update(last(), start_ + milliseconds(500));
  const std::string all = text();
  EXPECT_EQ(sample(all, "kvlane_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(sample(all, "kvlane_prompt_tokens_total"), 50) << "one prompt";
  EXPECT_EQ(sample(all, "kvlane_inter_token_latency_seconds_count"), 2);
  EXPECT_NEAR(sample(all, "kvlane_inter_token_latency_seconds_sum"), 0.1 + 0.2, 1e-9);
  EXPECT_EQ(sample(all, "kvlane_answers_finished_total", {"reason=\"length\""}), 1);
  EXPECT_EQ(sample(all, "kvlane_answers_finished_total", {"reason=\"stop\""}), 1);
}

TEST_F(WorkerMetricsTest, FailuresCountByReasonAndNotAsTimes) {
  RequestMeter request = meter();
  request.update(token(0), start_);
  request.update(last(corrupt("a checksum")), start_ + milliseconds(5));
  metrics_->refused(to_api_error(exhausted("full")));
  metrics_->refused({400, "wrong", "n", ""});
  metrics_->refused({400, "long", "prompt", "context_length_exceeded"});
  const std::string all = text();
  const auto failures = [&](const std::string& reason) {
    return sample(all, "kvlane_request_failures_total", {"reason=\"" + reason + "\""});
  };
  EXPECT_EQ(failures("corrupt"), 1);
  EXPECT_EQ(failures("exhausted"), 1);
  EXPECT_EQ(failures("invalid_argument"), 1);
  EXPECT_EQ(failures("context_length_exceeded"), 1);
  EXPECT_EQ(failures("aborted"), 0) << "there from the start";
  EXPECT_EQ(sample(all, "kvlane_request_seconds_count"), 0);
  EXPECT_EQ(sample(all, "kvlane_answers_finished_total", {"reason=\"stop\""}), 0);
}

TEST_F(WorkerMetricsTest, AnAnswerThatEndsAtOnceHasAFirstTokenToo) {
  RequestMeter request = meter();
  request.update(last(), start_ + milliseconds(10));
  EXPECT_EQ(sample(text(), "kvlane_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(sample(text(), "kvlane_generation_tokens_total"), 0);
}

TEST_F(WorkerMetricsTest, PrefillsForOthersCountPromptsNotFirstTokens) {
  RequestMeter request = meter();
  PrefillOutcome outcome;
  outcome.finish.account.prefill = 0.5;
  outcome.finish.kv = {1000, 700, "none"};
  outcome.first.resize(1);
  request.prefilled(outcome, start_ + milliseconds(750));
  const std::string all = text();
  EXPECT_EQ(sample(all, "kvlane_prompt_tokens_total"), 50);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_request_seconds_sum"), 0.75);
  EXPECT_EQ(sample(all, "kvlane_time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(sample(all, "kvlane_generation_tokens_total"), 0);
  EXPECT_EQ(sample(all, "kvlane_transfer_shipped_bytes_total"), 700);
}

TEST_F(WorkerMetricsTest, TheEnginesStateIsReadWhenAsked) {
  EngineLoad load;
  load.running = 3;
  load.queued = 2;
  load.queued_tokens = 900;
  load.blocks_total = 10;
  load.blocks_free = 4;
  load.blocks_cached = 1;
  load.prefix_query_tokens = 5000;
  load.prefix_hit_tokens = 4000;
  load.preemptions = 7;
  load.recomputed_tokens = 70;
  load.host_blocks = 8;
  load.store = {.bytes = 9000,
                .memory_bytes = 500,
                .saved_bytes = 9500,
                .evicted = 4,
                .reads = 60,
                .memory_reads = 20,
                .device_reads = 10,
                .damaged = 1};
  load.host_hit_tokens = 128;
  load.store_hit_tokens = 640;
  load.restores = 6;
  load.restores_failed = 1;
  load.restore_bytes = 1 << 20;
  load.restore_seconds = 0.25;
  load.restore_seconds_expected = 0.5;
  load.save_failures = 2;
  load.hidden_tokens_lost = 192;
  load.steps = 1000;
  load.step_seconds = 12.5;
  load.schedule_seconds = 0.125;
  const std::string all = text(load);
  EXPECT_EQ(sample(all, "kvlane_requests_running"), 3);
  EXPECT_EQ(sample(all, "kvlane_requests_waiting"), 2);
  EXPECT_EQ(sample(all, "kvlane_waiting_tokens"), 900);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_kv_cache_usage_ratio"), 0.6);
  EXPECT_EQ(sample(all, "kvlane_kv_blocks", {"state=\"used\""}), 6);
  EXPECT_EQ(sample(all, "kvlane_kv_blocks", {"state=\"cached\""}), 1);
  EXPECT_EQ(sample(all, "kvlane_kv_blocks", {"state=\"empty\""}), 3);
  EXPECT_EQ(sample(all, "kvlane_prefix_query_tokens_total"), 5000);
  EXPECT_EQ(sample(all, "kvlane_prefix_hit_tokens_total"), 4000);
  EXPECT_EQ(sample(all, "kvlane_preemptions_total"), 7);
  EXPECT_EQ(sample(all, "kvlane_recomputed_tokens_total"), 70);
  EXPECT_EQ(sample(all, "kvlane_host_blocks"), 8);
  EXPECT_EQ(sample(all, "kvlane_host_hit_tokens_total"), 128);
  EXPECT_EQ(sample(all, "kvlane_store_hit_tokens_total"), 640);
  EXPECT_EQ(sample(all, "kvlane_store_bytes"), 9000);
  EXPECT_EQ(sample(all, "kvlane_store_memory_bytes"), 500);
  EXPECT_EQ(sample(all, "kvlane_store_saved_bytes_total"), 9500);
  EXPECT_EQ(sample(all, "kvlane_store_reads_total", {"from=\"disk\""}), 30);
  EXPECT_EQ(sample(all, "kvlane_store_reads_total", {"from=\"disk_directly\""}), 10);
  EXPECT_EQ(sample(all, "kvlane_store_reads_total", {"from=\"memory\""}), 20);
  EXPECT_EQ(sample(all, "kvlane_store_evicted_total"), 4);
  EXPECT_EQ(sample(all, "kvlane_store_damaged_total"), 1);
  EXPECT_EQ(sample(all, "kvlane_restores_total"), 6);
  EXPECT_EQ(sample(all, "kvlane_restores_failed_total"), 1);
  EXPECT_EQ(sample(all, "kvlane_restore_bytes_total"), 1 << 20);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_restore_seconds_total"), 0.25);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_restore_expected_seconds_total"), 0.5);
  EXPECT_EQ(sample(all, "kvlane_store_save_failures_total"), 2);
  EXPECT_EQ(sample(all, "kvlane_store_hidden_tokens_lost_total"), 192);
  EXPECT_EQ(sample(all, "kvlane_steps_total"), 1000);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_step_seconds_total"), 12.5);
  EXPECT_DOUBLE_EQ(sample(all, "kvlane_schedule_seconds_total"), 0.125);
  EXPECT_EQ(sample(text(), "kvlane_kv_cache_usage_ratio"), 0) << "no division by no blocks";
}

TEST_F(WorkerMetricsTest, DashboardsForVllmFindTheirNames) {
  RequestMeter request = meter();
  request.update(token(0), start_ + milliseconds(2000));
  request.update(last(), start_ + milliseconds(4000));
  EngineLoad load;
  load.running = 3;
  load.blocks_total = 4;
  load.blocks_free = 1;
  load.prefix_hit_tokens = 64;
  const std::string all = text(load);
  const std::string model = "model_name=\"tiny\"";
  EXPECT_EQ(sample(all, "vllm:num_requests_running", {model}), 3);
  EXPECT_EQ(sample(all, "vllm:num_requests_waiting", {model}), 0);
  EXPECT_DOUBLE_EQ(sample(all, "vllm:kv_cache_usage_perc", {model}), 0.75);
  EXPECT_EQ(sample(all, "vllm:prefix_cache_queries_total", {model}), 0);
  EXPECT_EQ(sample(all, "vllm:prefix_cache_hits_total", {model}), 64);
  EXPECT_EQ(sample(all, "vllm:num_preemptions_total", {model}), 0);
  EXPECT_EQ(sample(all, "vllm:prompt_tokens_total", {model}), 50);
  EXPECT_EQ(sample(all, "vllm:generation_tokens_total", {model}), 1);
  EXPECT_EQ(sample(all, "vllm:request_success_total", {model, "finished_reason=\"stop\""}), 1);
  EXPECT_EQ(sample(all, "vllm:time_to_first_token_seconds_bucket", {model, "le=\"2.5\""}), 1);
  for (const char* name :
       {"inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
        "request_generation_tokens"}) {
    EXPECT_GE(sample(all, std::string("vllm:") + name + "_count", {model}), 0) << name;
  }
  EXPECT_DOUBLE_EQ(sample(all, "vllm:request_queue_time_seconds_sum"), 0.25);
  EXPECT_EQ(all.find("vllm:request_queue_time_seconds_sum{interval"), std::string::npos);
}

TEST_F(WorkerMetricsTest, IsPrometheusTextForm) {
  const HttpResponse response = WorkerMetrics(Role::kDecode, "odd \"name\"\n").text({});
  EXPECT_THAT(response.content_type, testing::StartsWith("text/plain; version=0.0.4"));
  EXPECT_THAT(response.body, testing::HasSubstr(R"(model_name="odd \"name\"\n")"));
  const std::regex sample_line(
      R"([a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? -?[0-9.e+-]+)");
  std::istringstream lines(response.body);
  std::set<std::string> families;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(families.insert(line).second) << "twice: " << line;
    } else if (!line.starts_with("# HELP ")) {
      EXPECT_TRUE(std::regex_match(line, sample_line)) << line;
    }
  }
  EXPECT_GT(families.size(), 30U);
}

}  // namespace
}  // namespace kvlane
