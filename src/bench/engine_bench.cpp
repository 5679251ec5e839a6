// Requests to an engine as a server would make them, and what its callbacks and counters tell.
// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_bench.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "cpu/parallel.h"
#include "engine/engine.h"
#include "model/model.h"
#include "model/tokenizer.h"

namespace kvlane {
namespace {

constexpr int kTailTokens = 16;  // of a long prompt, behind the part that is shared

// When each token of one answer came.
class Timeline {
 public:
  OnUpdate on_update() {
    return [this](const Update& update) {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < update.tokens.size(); ++i) times_.push_back(SteadyClock::now());
      if (update.finish) finish_ = update.finish;
      changed_.notify_all();
    };
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finish_.has_value(); });
    return finish_->error;
  }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value() || times_.size() >= count; });
  }
  // Of a request that is over.
  const std::vector<TimePoint>& times() const { return times_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TimePoint> times_;
  std::optional<Finish> finish_;
};

class EngineBench {
 public:
  explicit EngineBench(const EngineBenchOptions& options) : options_(options) {}

  Result<Report> run() {
    if (options_.threads > 0) set_parallel_threads(options_.threads);
    say("loading");
    KVLANE_ASSIGN(model_, Model::load(options_.directory, {.isa = options_.isa}));
    KVLANE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(options_.directory));
    prefix_ = std::min(options_.prefix_tokens, model_->context() - kTailTokens - 1) / kBlockTokens *
              kBlockTokens;
    const int answer = options_.prompt_tokens + answer_tokens();
    if (prefix_ < kBlockTokens || answer > model_->context()) {
      return invalid_argument("prompts of " + std::to_string(options_.prompt_tokens) +
                              " tokens with answers of " + std::to_string(answer_tokens()) +
                              " do not fit the context of " + std::to_string(model_->context()));
    }
    engine_options_.threads = options_.threads;
    engine_options_.kv_bytes =
        (std::size_t(options_.batch) * blocks_for(answer) +
         std::size_t(options_.repeats + 2) * blocks_for(prefix_ + kTailTokens + 1)) *
        model_->config().kv_shape().block_bytes();
    engine_options_.sequences_max = options_.batch + 1;
    KVLANE_ASSIGN(engine_, Engine::create(*model_, tokenizer, nullptr, engine_options_));
    Report report{
        describe_machine(parallel_threads()) + ", kernels " + std::string(isa_name(options_.isa)),
        build_commit(),
        "",
        {}};
    KVLANE_TRY(measure_batch(report.results));
    KVLANE_TRY(measure_prefix(report.results));
    engine_.reset();
    return report;
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }

  // The long prompt arrives in the middle of the answers.
  int answer_tokens() const { return 2 * options_.answer_tokens; }

  GenerationRequest request(int tokens, int answer) {
    GenerationRequest request;
    request.prompt.resize(tokens);
    const std::uint32_t stream = ++requests_;
    for (int i = 0; i < tokens; ++i) {
      const PhiloxCounter random = philox4x32(2, {static_cast<std::uint32_t>(i), stream, 0, 0});
      request.prompt[i] = static_cast<std::int32_t>(random[0] % model_->config().vocab);
    }
    request.sampling.temperature = 0;
    request.max_tokens = answer;
    request.ignore_eos = true;
    return request;
  }

  // A full batch of answers; half way a long prompt arrives.
  Status measure_batch(std::vector<Figure>& results) {
    std::vector<double> speeds, overheads, slowdowns;
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {
      say(repeat < 0 ? "warming up" : "a batch of answers, and a prompt in the middle");
      const EngineLoad before = engine_->load();
      std::vector<Timeline> answers(options_.batch);
      const TimePoint start = SteadyClock::now();
      for (Timeline& answer : answers) {
        KVLANE_TRY(
            engine_->submit(request(options_.prompt_tokens, answer_tokens()), answer.on_update())
                .status());
      }
      for (Timeline& answer : answers) answer.wait_for_tokens(options_.answer_tokens);
      const TimePoint arrival = SteadyClock::now();
      Timeline prompt;
      KVLANE_TRY(engine_->submit(request(prefix_, 1), prompt.on_update()).status());
      for (Timeline& answer : answers) KVLANE_TRY(answer.wait());
      KVLANE_TRY(prompt.wait());
      if (repeat < 0) continue;
      const EngineLoad after = engine_->load();
      overheads.push_back((after.schedule_seconds - before.schedule_seconds) /
                          (after.step_seconds - before.step_seconds));
      speeds.push_back(options_.batch * answer_tokens() / seconds_since(start));
      slowdowns.push_back(slowdown(answers, arrival, prompt.times().front()));
    }
    results.push_back({"engine_tokens_per_second", median(speeds), "tokens/s"});
    results.push_back({.name = "scheduler_share",
                       .value = median(overheads),
                       .unit = "share",
                       .goal = 0.02,
                       .better = Figure::Better::kLower});
    results.push_back({.name = "answer_slowdown",
                       .value = median(slowdowns),
                       .unit = "ratio",
                       .goal = engine_options_.slowdown_max,
                       .better = Figure::Better::kLower});
    return {};
  }

  // Mean time of a token while the prompt was computed, over the mean time before it came.
  double slowdown(const std::vector<Timeline>& answers, TimePoint arrival,
                  TimePoint first_token) const {
    double beside = 0, without = 0;
    int beside_count = 0, without_count = 0;
    for (const Timeline& answer : answers) {
      const std::vector<TimePoint>& times = answer.times();
      // Until all have begun, their own prompts are in the steps.
      for (std::size_t i = std::size_t(options_.answer_tokens) / 2; i < times.size(); ++i) {
        const double seconds = seconds_between(times[i - 1], times[i]);
        if (times[i] <= arrival) {
          without += seconds;
          ++without_count;
        } else if (times[i - 1] > arrival && times[i] <= first_token) {
          beside += seconds;
          ++beside_count;
        }
      }
    }
    return (beside / std::max(1, beside_count)) / (without / std::max(1, without_count));
  }

  // A long prompt computed, and one that shares all but its tail with it.
  Status measure_prefix(std::vector<Figure>& results) {
    std::vector<double> misses, hits;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      say("a prefix computed, and found");
      GenerationRequest first = request(prefix_ + kTailTokens, 1);
      GenerationRequest second = first;
      second.prompt.back() ^= 1;
      for (GenerationRequest* one : {&first, &second}) {
        Timeline timeline;
        const TimePoint start = SteadyClock::now();
        KVLANE_TRY(engine_->submit(std::move(*one), timeline.on_update()).status());
        KVLANE_TRY(timeline.wait());
        (one == &first ? misses : hits).push_back(seconds_between(start, timeline.times().at(0)));
      }
    }
    results.push_back({"prefix_tokens", static_cast<double>(prefix_), "tokens"});
    results.push_back({"ttft_prefix_miss", median(misses), "s"});
    results.push_back({"ttft_prefix_hit", median(hits), "s", median(misses)});
    results.push_back({.name = "ttft_prefix_ratio",
                       .value = median(hits) / median(misses),
                       .unit = "ratio",
                       .goal = 0.1,
                       .better = Figure::Better::kLower});
    return {};
  }

  const EngineBenchOptions& options_;
  std::unique_ptr<Model> model_;
  EngineOptions engine_options_;
  std::unique_ptr<Engine> engine_;
  int prefix_ = 0;
  std::uint32_t requests_ = 0;
};

}  // namespace

Result<Report> bench_engine(const EngineBenchOptions& options) {
  return EngineBench(options).run();
}

}  // namespace kvlane
