// `kvlane generate`: one answer on the terminal, without a server.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <future>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/loaded_model.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/prompt.h"

namespace kvlane {
namespace {

struct GenerateFlags {
  ModelFlags model;
  std::string prompt;
  bool chat = false;
  int max_tokens = 64;
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool json = false;
};

// What was said, and how it ended.
struct GeneratedText {
  std::string text;
  std::vector<std::int32_t> tokens;
  FinishReason reason = FinishReason::kStop;
  Finish finish;
};

Result<std::vector<std::int32_t>> encode_prompt(const GenerateFlags& flags,
                                                const LoadedModel& loaded) {
  const ModelPrompter prompter = make_prompter(loaded, loaded.model->context());
  if (flags.chat && !loaded.chat_template && loaded.chat_problem.ok()) {
    return invalid_argument("this model has no chat template; leave --chat out");
  }
  if (flags.chat) return prompter.encode_chat({{"user", flags.prompt}}, true);
  if (!flags.prompt.empty()) return prompter.encode_text(flags.prompt, true);
  if (prompter.bos() < 0) return invalid_argument("an empty prompt needs a model with a BOS token");
  return std::vector<std::int32_t>{prompter.bos()};
}

// Runs one request; pieces of text go to `on_text` as they come.
Result<GeneratedText> answer(Engine& engine, GenerationRequest request,
                             const std::function<void(const std::string&)>& on_text) {
  GeneratedText result;
  std::promise<void> done;
  KVLANE_TRY(engine
                 .submit(std::move(request),
                         [&](const Update& update) {
                           result.text += update.text;
                           result.tokens.insert(result.tokens.end(), update.tokens.begin(),
                                                update.tokens.end());
                           on_text(update.text);
                           if (update.ended) result.reason = *update.ended;
                           if (!update.finish) return;
                           result.finish = *update.finish;
                           done.set_value();
                         })
                 .status());
  done.get_future().wait();
  KVLANE_TRY(result.finish.error);
  return result;
}

Status generate(const GenerateFlags& flags) {
  KVLANE_ASSIGN(const LoadedModel loaded, load_model(flags.model));
  KVLANE_ASSIGN(EngineOptions options, engine_options(flags.model, loaded));
  KVLANE_ASSIGN(const auto engine,
                Engine::create(*loaded.model, *loaded.tokenizer, nullptr, std::move(options)));
  GenerationRequest request;
  KVLANE_ASSIGN(request.prompt, encode_prompt(flags, loaded));
  request.sampling.temperature = flags.temperature;
  request.sampling.top_k = flags.top_k;
  request.sampling.top_p = flags.top_p;
  request.seed = flags.seed;
  const int room = loaded.model->context() - static_cast<int>(request.prompt.size());
  request.max_tokens = std::min(flags.max_tokens, std::max(room, 1));
  request.stop = flags.stop;
  request.ignore_eos = flags.ignore_eos;

  const bool stream = !flags.json;
  KVLANE_ASSIGN(const GeneratedText result,
                answer(*engine, std::move(request), [stream](const std::string& text) {
                  if (stream) std::cout << text << std::flush;
                }));
  if (stream) {
    std::cout << '\n';
    return {};
  }
  const nlohmann::ordered_json json = {
      {"text", result.text},
      {"tokens", result.tokens},
      {"finish_reason", result.reason == FinishReason::kStop ? "stop" : "length"},
      {"prompt_tokens", result.finish.prompt_tokens},
      {"cached_tokens", result.finish.cached_tokens},
      {"completion_tokens", result.finish.completion_tokens},
      {"account", account_json(result.finish.account)}};
  std::cout << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  return {};
}

}  // namespace

void add_generate(Command& app) {
  Command command = app.add_subcommand("generate", "Continue a prompt on the terminal");
  command.footer(
      "Example: kvlane generate models/kvlane-tiny-gqa --prompt \"The old house\" --max-tokens 50");
  const auto flags = std::make_shared<GenerateFlags>();
  add_model_flags(command, flags->model);
  add_state_flags(command, flags->model.state);
  command.add_option("--prompt,-p", flags->prompt, "text to continue (default: from BOS)");
  command.add_flag("--chat", flags->chat, "wrap the prompt in the model's chat template");
  command.add_option("--max-tokens,-n", flags->max_tokens, "length of the answer")
      .check(range(1, INT32_MAX))
      .capture_default_str();
  command.add_option("--temperature", flags->temperature, "0: always the most likely token")
      .capture_default_str();
  command.add_option("--top-k", flags->top_k, "draw from the k most likely tokens; 0: all")
      .capture_default_str();
  command.add_option("--top-p", flags->top_p, "draw from the most likely tokens that make up p")
      .capture_default_str();
  command.add_option("--seed", flags->seed, "same seed, same answer").capture_default_str();
  command.add_option("--stop", flags->stop, "end before this text; may be repeated")
      .one_value_each();  // or it would take DIR for a second text
  command.add_flag("--ignore-eos", flags->ignore_eos, "go on after the end-of-sequence token");
  command.add_flag("--json", flags->json, "one JSON object with text, tokens and time account");
  command.action([flags] { return generate(*flags); });
}

}  // namespace kvlane
