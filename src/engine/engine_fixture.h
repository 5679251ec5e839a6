// What engine tests share: a small model with a tokenizer, collected answers, workers on a network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/engine.h"
#include "transfer/test_link.h"

namespace kvlane {

template <class T>
T take(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(*result);
}

// tests/fixtures/models/NAME, loaded once for each name and tier.
inline const Model& fixture_model(const std::string& name = "llama-gqa-bf16-llama3-sharded",
                                  const std::string& tier = "auto") {
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<Model>> models;
  auto& model = models[{name, tier}];
  if (!model) {
    const auto directory =
        std::filesystem::path(KVLANE_SOURCE_DIR) / "tests/fixtures/models" / name;
    model = take(Model::load(directory, {.isa = take(select_isa(tier))}));
  }
  return *model;
}

// A token for each byte: the printable ones have the ids that the fixtures' models know, 0 ... 95,
// of which 2 is their end of sequence; the others follow.
inline const Tokenizer& fixture_tokenizer() {
  static const Tokenizer tokenizer = [] {
    nlohmann::json vocab = {{"<eos>", 2}};
    int printable_id = 0;
    int other_id = 96;
    int renamed = 0;  // bytes without a glyph of their own are named U+0100 and up
    for (int byte = 0; byte < 256; ++byte) {
      const bool glyph = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      const int name = glyph ? byte : 256 + renamed++;
      const std::string key = name < 128 ? std::string(1, static_cast<char>(name))
                                         : std::string{static_cast<char>(0xc0 | name >> 6),
                                                       static_cast<char>(0x80 | (name & 0x3f))};
      if (printable_id == 2) ++printable_id;
      vocab[key] = byte >= 32 && byte <= 126 ? printable_id++ : other_id++;
    }
    const nlohmann::json json = {
        {"added_tokens",
         {{{"id", 2},
           {"content", "<eos>"},
           {"single_word", false},
           {"lstrip", false},
           {"rstrip", false},
           {"normalized", false},
           {"special", true}}}},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
        {"post_processor", nullptr},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
    return take(Tokenizer::parse(json.dump()));
  }();
  return tokenizer;
}

inline std::vector<std::int32_t> random_prompt(int tokens, std::uint32_t seed) {
  std::vector<std::int32_t> prompt(tokens);
  for (int i = 0; i < tokens; ++i) {
    prompt[i] = static_cast<std::int32_t>(
        3 + philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % 93);
  }
  return prompt;
}

// Everything one request reported. wait() returns when it is over.
class Answer {
 public:
  OnUpdate on_update() {
    return [this](const Update& update) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(finish_.has_value()) << "an update after the last one";
      tokens_.insert(tokens_.end(), update.tokens.begin(), update.tokens.end());
      text_ += update.text;
      if (update.finish) finish_ = update.finish;
      changed_.notify_all();
    };
  }

  const Finish& wait() {
    std::unique_lock lock(mutex_);
    const bool over =
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return finish_.has_value(); });
    EXPECT_TRUE(over) << "no answer within a minute";
    if (!over) finish_.emplace();
    return *finish_;
  }

  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60),
                      [&] { return finish_.has_value() || tokens_.size() >= count; });
  }

  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int32_t> tokens_;
  std::string text_;
  std::optional<Finish> finish_;
};

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
    const bool over =
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return outcome_.has_value(); });
    EXPECT_TRUE(over) << "no outcome within a minute";
    if (!over) outcome_.emplace();
    return *outcome_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<PrefillOutcome> outcome_;
};

// An engine with its door to a network.
struct Worker {
  Worker(Network& network, const Model& model, EngineOptions options = {},
         Seconds idle_timeout = Seconds(5)) {
    EndpointOptions door;
    door.model = model.identity();
    door.idle_timeout = idle_timeout;
    endpoint = take(Endpoint::start(network, door));
    options.kv_bytes = std::size_t{1} << 24;
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

// What one process answers, as the truth for everything else.
inline std::vector<std::int32_t> alone(const Model& model, const GenerationRequest& request) {
  const auto engine =
      take(Engine::create(model, fixture_tokenizer(), nullptr, {.kv_bytes = std::size_t{1} << 24}));
  Answer answer;
  EXPECT_TRUE(engine->submit(request, answer.on_update()).ok());
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  return answer.tokens();
}

}  // namespace kvlane
