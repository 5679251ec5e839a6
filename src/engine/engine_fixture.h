// What engine tests share: a small model with a tokenizer, collected answers, workers on a network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/test_results.h"
#include "codec/codec.h"
#include "engine/engine.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "quant/kv_format.h"
#include "transfer/test_link.h"

namespace kvlane {

// Under sanitizers, on emulated devices and a busy machine, answers take their time.
inline constexpr std::chrono::minutes kPatience{4};

// tests/fixtures/models/NAME, loaded once for each name and tier.
const Model& fixture_model(const std::string& name = "llama-gqa-bf16-llama3-sharded",
                           const std::string& tier = "auto");

// A token for each byte: the printable ones have the ids that the fixtures' models know, 0 ... 95,
// of which 2 is their end of sequence; the others follow.
const Tokenizer& fixture_tokenizer();

inline std::vector<std::int32_t> random_prompt(int tokens, std::uint32_t seed) {
  std::vector<std::int32_t> prompt(tokens);
  for (int i = 0; i < tokens; ++i) {
    prompt[i] = static_cast<std::int32_t>(
        3 + philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % 93);
  }
  return prompt;
}

// As long as it may be; greedy without a temperature.
inline GenerationRequest make_request(int prompt_tokens, int max_tokens, std::uint32_t seed,
                                      float temperature = 0) {
  GenerationRequest request;
  request.prompt = random_prompt(prompt_tokens, seed);
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.top_p = 0.95F;
  request.seed = seed;
  request.ignore_eos = true;
  return request;
}

// Greedy for even seeds, drawn for odd ones.
inline GenerationRequest make_mixed_request(int prompt_tokens, int max_tokens, std::uint32_t seed) {
  return make_request(prompt_tokens, max_tokens, seed, seed % 2 == 0 ? 0.0F : 1.0F);
}

// What follows the answer to a request of the same conversation: both, and then `more`.
inline GenerationRequest next_turn(const GenerationRequest& before,
                                   const std::vector<std::int32_t>& answer,
                                   GenerationRequest more) {
  std::vector<std::int32_t> prompt = before.prompt;
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.insert(prompt.end(), more.prompt.begin(), more.prompt.end());
  more.prompt = std::move(prompt);
  return more;
}

// Alone, with 16 MiB for KV where the options say nothing.
inline std::unique_ptr<Engine> make_engine(EngineOptions options = {},
                                           const Model& model = fixture_model()) {
  if (options.kv_bytes == EngineOptions().kv_bytes) options.kv_bytes = std::size_t{1} << 24;
  return take(Engine::create(model, fixture_tokenizer(), nullptr, std::move(options)));
}

inline std::shared_ptr<const KvFormat> make_format(const std::string& text,
                                                   const Model& model = fixture_model(),
                                                   const KvTables* tables = nullptr) {
  return take(make_kv_format(text, {.shape = model.config().kv_shape(),
                                    .rope = &model.rope(),
                                    .tables = tables,
                                    .isa = model.isa()}));
}

// Everything one request reported, for each of its answers. wait() returns when it is over.
class Answer {
 public:
  struct One {
    std::vector<std::int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    std::string text;
    std::optional<FinishReason> reason;

    friend bool operator==(const One&, const One&) = default;
  };

  OnUpdate on_update() {
    return [this](const Update& update) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(finish_.has_value()) << "an update after the last one";
      if (std::size_t(update.choice) >= all_.size()) all_.resize(update.choice + 1);
      One& one = all_[update.choice];
      EXPECT_TRUE(!one.reason || (update.tokens.empty() && update.text.empty()))
          << "more of an answer that had ended";
      one.tokens.insert(one.tokens.end(), update.tokens.begin(), update.tokens.end());
      one.logprobs.insert(one.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
      one.text += update.text;
      if (update.ended) one.reason = update.ended;
      if (update.finish) finish_ = update.finish;
      changed_.notify_all();
    };
  }

  const Finish& wait() {
    std::unique_lock lock(mutex_);
    const bool over = changed_.wait_for(lock, kPatience, [this] { return finish_.has_value(); });
    EXPECT_TRUE(over) << "no answer in four minutes";
    if (!over) finish_.emplace();
    return *finish_;
  }

  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience,
                      [&] { return finish_.has_value() || all_[0].tokens.size() >= count; });
  }

  // After wait().
  const Finish& finish() const { return *finish_; }
  // Of the first answer; why it ended is nothing if it failed.
  const std::vector<std::int32_t>& tokens() const { return all_[0].tokens; }
  const std::string& text() const { return all_[0].text; }
  std::optional<FinishReason> reason() const { return all_[0].reason; }
  // Those that anything came of.
  const std::vector<One>& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<One> all_{1};
  std::optional<Finish> finish_;
};

inline std::vector<Answer::One> answers_of(Engine& engine, const GenerationRequest& request) {
  Answer answer;
  EXPECT_TRUE(engine.submit(request, answer.on_update()).ok());
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  return answer.all();
}

// Several answers to one prompt are the same with room for all of them as with room for few.
inline void expect_answers_in_any_room(
    const std::function<std::unique_ptr<Engine>(int blocks)>& make_engine, int many, int few) {
  GenerationRequest request = make_request(200, 30, 5, 1.0F);
  request.n = 4;
  std::vector<std::vector<Answer::One>> all;
  for (const int blocks : {many, few}) {
    const auto engine = make_engine(blocks);
    all.push_back(answers_of(*engine, request));
    engine->wait_idle();
    EXPECT_EQ(engine->load().blocks_free, blocks);
  }
  ASSERT_EQ(all[0].size(), 4U);
  EXPECT_EQ(all[0], all[1]);
  EXPECT_NE(all[0][0].tokens, all[0][1].tokens);
}

// The outcome of one prefill that went elsewhere.
class Prefilled {
 public:
  OnPrefilled on_prefilled() {
    return [this](const PrefillOutcome& outcome) {
      const std::lock_guard lock(mutex_);
      outcome_ = outcome;
      changed_.notify_all();
    };
  }
  const PrefillOutcome& wait() {
    std::unique_lock lock(mutex_);
    const bool over = changed_.wait_for(lock, kPatience, [this] { return outcome_.has_value(); });
    EXPECT_TRUE(over) << "no outcome in four minutes";
    if (!over) outcome_.emplace();
    return *outcome_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<PrefillOutcome> outcome_;
};

// Once nobody has anything to do: also who saves has given all blocks back. The engine tells that
// when it next looks.
inline void expect_all_blocks_free(Engine& engine) {
  engine.wait_idle();
  engine.flush_state();
  const TimePoint end = SteadyClock::now() + std::chrono::seconds(20);
  while (engine.load().blocks_free < engine.load().blocks_total && SteadyClock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(engine.load().blocks_free, engine.load().blocks_total);
}

// An engine with its door to a network.
struct Worker {
  Worker(Network& network, const Model& model, EngineOptions options = {},
         Seconds idle_timeout = Seconds(5),
         std::size_t outgoing_bytes_max = EndpointOptions().outgoing_bytes_max) {
    EndpointOptions door;
    door.outgoing_bytes_max = outgoing_bytes_max;
    door.model = model.identity();
    door.idle_timeout = idle_timeout;
    door.codecs = codec_names();
    door.mark = options.state.lossy_mark();
    if (options.kv_format) {
      door.format = options.kv_format->name();
      door.tables = options.kv_format->tables();
    }
    endpoint = take(Endpoint::start(network, door));
    if (options.kv_bytes == EngineOptions().kv_bytes) options.kv_bytes = std::size_t{1} << 24;
    engine = take(Engine::create(model, fixture_tokenizer(), endpoint.get(), std::move(options)));
  }

  // All blocks are back.
  void expect_clean() const {
    engine->wait_idle();
    const EngineLoad load = engine->load();
    EXPECT_EQ(load.blocks_free, load.blocks_total);
  }

  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<Engine> engine;
};

// One request pushed from `prefill` to `decode`.
struct Push {
  Push(Worker& prefill, Worker& decode, const GenerationRequest& request) {
    const TransferId transfer = random_transfer_id();
    const auto reserved = decode.engine->reserve(request, transfer);
    EXPECT_TRUE(reserved.ok()) << reserved.status().message();
    if (!reserved.ok()) return;
    decode_id = *reserved;
    EXPECT_TRUE(decode.engine->attach(decode_id, answer.on_update()).ok());
    prefill_id = take(prefill.engine->prefill_and_push(request, decode.endpoint->address(),
                                                       transfer, prefilled.on_prefilled()));
  }
  Push(const Push&) = delete;
  Push& operator=(const Push&) = delete;
  // The outcome's callback points here.
  ~Push() {
    if (prefill_id != 0) prefilled.wait();
  }

  RequestId decode_id = 0;
  RequestId prefill_id = 0;
  Answer answer;
  Prefilled prefilled;
};

inline std::vector<std::int32_t> answer_of(Engine& engine, const GenerationRequest& request,
                                           Finish* finish = nullptr) {
  Answer answer;
  const Status submitted = engine.submit(request, answer.on_update()).status();
  EXPECT_TRUE(submitted.ok()) << submitted.message();
  if (!submitted.ok()) return {};
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  if (finish != nullptr) *finish = answer.finish();
  return answer.tokens();
}

// What one process answers, as the truth for everything else.
inline std::vector<std::int32_t> alone(const Model& model, const GenerationRequest& request,
                                       const EngineOptions& options = {.kv_bytes = std::size_t{1}
                                                                                   << 24}) {
  return answer_of(*take(Engine::create(model, fixture_tokenizer(), nullptr, options)), request);
}

}  // namespace kvlane
