// Texts become the beginnings of prompts, which an engine computes and keeps.
//
// Nobody waits for an answer here, so the engine waits for the disk, and a text is told of when the
// store says that it has it. The least that an engine computes is an answer of one token: behind
// the whole blocks of a text stands one token more, whose logits give it.
// SPDX-License-Identifier: Apache-2.0
#include "cli/store_warm.h"

#include <condition_variable>
#include <cstdint>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "format/shape.h"
#include "model/utf8.h"
#include "server/json_field.h"
#include "server/json_text.h"
#include "server/openai_request.h"
#include "server/prompt_fields.h"
#include "store/store.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

struct WarmFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string prefix;  // file; empty: none
  bool chat = false;   // files are messages, not texts
  std::string salt;    // of the requests that they are for
  bool json = false;
};

// Of one file, or of all.
struct TokenCounts {
  std::int64_t tokens = 0;    // of its prompt
  std::int64_t whole = 0;     // of these, in whole blocks
  std::int64_t found = 0;     // of whole ones: not computed, for they were there
  std::int64_t computed = 0;  // the others
  std::int64_t stored = 0;    // whole ones that the store has now

  TokenCounts& operator+=(const TokenCounts& other) {
    tokens += other.tokens;
    whole += other.whole;
    found += other.found;
    computed += other.computed;
    stored += other.stored;
    return *this;
  }
};

Json counts_json(const TokenCounts& counts) {
  return {{"tokens", counts.tokens},
          {"found", counts.found},
          {"computed", counts.computed},
          {"stored", counts.stored},
          {"lost", counts.whole - counts.stored}};
}

// The messages of a chat: an array of them, or an object that has nothing else.
Result<std::vector<ChatMessage>> parse_chat(const std::string& text) {
  KVLANE_ASSIGN(nlohmann::json json, parse_json(text));
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      if (name != "messages") return invalid_argument(unknown_field(name).message);
    }
    json = json.value("messages", nlohmann::json());
  }
  std::vector<ChatMessage> messages;
  if (const Refusal refusal = read_messages(json, "messages", messages)) {
    return invalid_argument(refusal->message);
  }
  return messages;
}

void print_json(const Json& json) {
  std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}

// A text on its way.
struct Context {
  std::string file;
  std::vector<std::int32_t> prompt;
  TokenCounts counts;
  Status error;
};

// What is computed now, and what is computed and not settled yet.
class UnderWay {
 public:
  void begin(int tokens) {
    const std::lock_guard lock(mutex_);
    ++count_;
    tokens_ += tokens;
  }
  void end(Context context) {
    {
      const std::lock_guard lock(mutex_);
      over_.push_back(std::move(context));
    }
    changed_.notify_one();
  }
  // Waits until at least one is over. Empty: nothing is under way.
  std::vector<Context> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0 || !over_.empty(); });
    for (const Context& context : over_) {
      --count_;
      tokens_ -= static_cast<int>(context.prompt.size());
    }
    return std::exchange(over_, {});
  }
  // Two, so that one is computed while another is settled; and of short ones what fills two steps.
  // More would be begun at once and wait for each other, with their state in memory.
  bool has_room(const EngineOptions& options) const {
    const std::lock_guard lock(mutex_);
    return count_ < 2 || tokens_ < 2 * options.chunk_tokens;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Context> over_;
  int count_ = 0;   // these included
  int tokens_ = 0;  // of all of them
};

class Warming {
 public:
  Warming(const WarmFlags& flags, const LoadedModel& loaded, EngineOptions options)
      : flags_(flags),
        model_(*loaded.model),
        prompter_(make_prompter(loaded, loaded.model->context())),
        store_(options.state.store),
        options_(std::move(options)) {}

  Status run(const LoadedModel& loaded) {
    KVLANE_ASSIGN(engine_, Engine::create(*loaded.model, *loaded.tokenizer, nullptr, options_));
    if (!flags_.prefix.empty()) {
      KVLANE_ASSIGN(prefix_, read_text_file(flags_.prefix, kTextBytesMax));
    }
    for (const std::string& file : flags_.files) {
      while (!under_way_.has_room(options_)) settle();
      begin(file);
    }
    while (settle()) {
    }
    progress_.hide();
    return conclude();
  }

 private:
  void begin(const std::string& file) {
    Context context{.file = file};
    context.error = prepare(context);
    const TokenCounts& counts = context.counts;
    if (!context.error.ok() || counts.stored == counts.whole) {
      tell(context);
      return;
    }
    GenerationRequest request;
    request.prompt = context.prompt;
    request.max_tokens = 1;
    request.cache_salt = flags_.salt;
    under_way_.begin(static_cast<int>(context.prompt.size()));
    const auto shared = std::make_shared<Context>(std::move(context));
    const auto submitted =
        engine_->submit(std::move(request), [this, shared](const Update& update) {
          if (!update.finish) return;
          shared->error = update.finish->error;
          shared->counts.found = update.finish->cached_tokens;
          shared->counts.computed = shared->counts.whole - update.finish->cached_tokens;
          under_way_.end(std::move(*shared));
        });
    if (submitted.ok()) return;
    shared->error = submitted.status().with_context(file);
    under_way_.end(std::move(*shared));
  }

  // The file as the beginning of a prompt, and what the store has of it.
  Status prepare(Context& context) const {
    KVLANE_ASSIGN(const std::string text, read_text_file(context.file, kTextBytesMax));
    if (text.empty()) return invalid_argument(context.file + " is empty");
    auto tokens = flags_.chat ? encode_chat(text) : prompter_.encode_text(prefix_ + text, true);
    if (!tokens.ok()) return tokens.status().with_context(context.file);
    const int count = static_cast<int>(tokens->size());
    if (count >= model_.context()) {
      return invalid_argument(context.file + " has " + std::to_string(count) +
                              " tokens, too many for prompts of a model with a context of " +
                              std::to_string(model_.context()));
    }
    const int whole = count / kBlockTokens * kBlockTokens;
    context.counts = {.tokens = count, .whole = whole};
    if (whole == 0) return {};
    tokens->resize(whole);
    if (whole + 1 < model_.context()) tokens->push_back(tokens->back());  // any will do
    context.prompt = std::move(*tokens);
    KVLANE_ASSIGN(context.counts.stored, engine_->stored_tokens(context.prompt, flags_.salt));
    if (context.counts.stored == whole) context.counts.found = whole;
    return {};
  }

  Result<std::vector<std::int32_t>> encode_chat(const std::string& text) const {
    KVLANE_ASSIGN(const std::vector<ChatMessage> messages, parse_chat(text));
    return encode_chat_beginning(messages, prompter_);
  }

  // Waits for one that is over, or more, and for the disk. False: there is none.
  bool settle() {
    std::vector<Context> over = under_way_.wait();
    if (over.empty()) return false;
    engine_->flush_state();
    for (Context& context : over) {
      const Result<int> stored = engine_->stored_tokens(context.prompt, flags_.salt);
      if (stored.ok()) {
        context.counts.stored = *stored;
      } else if (context.error.ok()) {
        context.error = stored.status().with_context(context.file);
      }
      tell(context);
    }
    return true;
  }

  void tell(const Context& context) {
    const TokenCounts& counts = context.counts;
    ++told_;
    Status error = context.error;
    if (error.ok()) {
      total_ += counts;
      kept_.push_back(context);
      if (counts.stored < counts.whole) {
        error = unavailable(context.file + ": " + std::to_string(counts.whole - counts.stored) +
                            " of " + std::to_string(counts.whole) + " tokens are not in the store");
      }
    }
    if (!error.ok()) ++failed_;
    progress_.hide();
    if (!error.ok()) std::cerr << "kvlane: " << error.message() << std::endl;
    if (flags_.json) {
      Json json;
      json["file"] = context.file;
      if (context.error.ok()) json.update(counts_json(counts));
      if (!error.ok()) json["error"] = error.message();
      print_json(json);
    } else if (context.error.ok()) {
      std::cout << context.file << ": " << counts.stored << " of " << counts.tokens
                << " tokens are stored, " << counts.found << " were there, " << counts.computed
                << " computed" << std::endl;
    }
    progress_.show(std::to_string(told_) + " of " + std::to_string(flags_.files.size()) + " files");
  }

  // What was stored may have had to make room for what came later. Returns how many files' did.
  Result<int> look_again() {
    int files = 0;
    for (const Context& context : kept_) {
      if (context.counts.stored == 0) continue;
      KVLANE_ASSIGN(const int stored, engine_->stored_tokens(context.prompt, flags_.salt));
      if (stored >= context.counts.stored) continue;
      total_.stored -= context.counts.stored - stored;
      ++files;
      if (context.counts.stored == context.counts.whole) ++failed_;
    }
    return files;
  }

  Status conclude() {
    const double seconds = seconds_since(start_);
    // Ranks' stores do not say what went: it is looked at what is there.
    const std::uint64_t evicted = store_ ? store_->figures().evicted : 0;
    if (store_ == nullptr) {
      KVLANE_ASSIGN(const int files, look_again());
      if (files > 0) {
        std::cerr << "kvlane: the stores of ranks were full: blocks of " << files
                  << " of these files had to go\n";
      }
    } else if (evicted > 0) {
      KVLANE_ASSIGN(const int files, look_again());
      std::cerr << "kvlane: the store was full: " << evicted
                << " extents, the longest unused, had to go, of " << files
                << " of these files, too\n";
    }
    if (flags_.json) {
      Json sums = {{"files", told_}, {"failed", failed_}};
      sums.update(counts_json(total_));
      sums["evicted"] = evicted;
      sums["seconds"] = seconds;
      Json json;
      json["summary"] = std::move(sums);
      print_json(json);
    } else {
      std::cout << told_ - failed_ << " of " << told_ << " files, in whole blocks of "
                << kBlockTokens << ": " << total_.stored << " of " << total_.tokens
                << " tokens are stored, " << total_.found << " were there, " << total_.computed
                << " computed, in " << seconds << " s\n";
    }
    if (failed_ == 0) return {};
    return invalid_argument(std::to_string(failed_) + " of " + std::to_string(told_) +
                            " files are not stored, or not all of them");
  }

  const WarmFlags& flags_;
  const Model& model_;
  const ModelPrompter prompter_;
  const std::shared_ptr<Store> store_;  // null: ranks have theirs
  const EngineOptions options_;
  const TimePoint start_ = SteadyClock::now();
  std::string prefix_;
  Progress progress_{"warming"};
  int told_ = 0;
  int failed_ = 0;  // of these
  TokenCounts total_;
  std::vector<Context> kept_;
  UnderWay under_way_;
  std::unique_ptr<Engine> engine_;  // ends first: it calls back
};

// As servers check 'cache_salt': what no request can say would be stored in vain.
Status check_salt(const std::string& salt) {
  if (salt.size() <= kNameBytesMax && !find_invalid_utf8(salt)) return {};
  return invalid_argument("--salt must be valid UTF-8 of at most " + std::to_string(kNameBytesMax) +
                          " bytes, as a request's 'cache_salt'");
}

Status warm(const WarmFlags& flags) {
  KVLANE_TRY(check_salt(flags.salt));
  KVLANE_ASSIGN(const LoadedModel loaded, load_model(flags.model));
  KVLANE_ASSIGN(EngineOptions options, engine_options(flags.model, loaded));
  options.state.saves_all = true;
  // With a profile it may be quicker to compute what is there than to read it: not here, where
  // only what is missing is wanted.
  options.state.profile = nullptr;
  return Warming(flags, loaded, std::move(options)).run(loaded);
}

}  // namespace

void add_store_warm(Command& store) {
  Command command = store.add_subcommand(
      "warm", "Compute texts as beginnings of prompts, for engines that open the store later");
  command.footer(
      "A prompt that begins with the same tokens is restored, in whole blocks of 64 tokens.\n"
      "Examples:\n"
      "  kvlane store warm models/kvlane-tiny-gqa a.txt b.txt --store /mnt/nvme0/kv\n"
      "  kvlane store warm DIR --chat system.json --salt tenant-7 --store /mnt/nvme0/kv");
  const auto flags = std::make_shared<WarmFlags>();
  add_model_flags(command, flags->model);
  command
      .add_option("FILE", flags->files,
                  "a text each, as UTF-8, whose tokens are those of a completion; or a chat")
      .required();
  add_state_flags(command, flags->model.state);
  // Each takes one, or it would take files for directories.
  command.get_option("--store").required().one_value_each();
  const Option prefix = command.add_option(
      "--prefix", flags->prefix, "file with text in front of all, for example a system prompt");
  command
      .add_flag(
          "--chat", flags->chat,
          "files are chats in JSON, [{\"role\": .., \"content\": ..}] or {\"messages\": [..]}: "
          "what every chat begins with that goes on from there")
      .excludes(prefix);
  command.add_option("--salt", flags->salt,
                     "for requests with this 'cache_salt', and for no others (default: for those "
                     "without)");
  command.add_flag("--json", flags->json, "a line of JSON for each file, and a summary");
  command.action([flags] { return warm(*flags); });
}

}  // namespace kvlane
