// Window by window, each format that has no score of it yet.
// SPDX-License-Identifier: Apache-2.0
#include "eval/text_task.h"

#include <algorithm>

#include "eval/quality.h"

namespace kvlane {
namespace {

std::vector<double> to_values(const WindowScore& s) {
  return {s.tokens,       s.loss,           s.divergence, s.agreeing,    s.worst,
          s.bytes.sealed, s.bytes.elements, s.bytes.all,  s.bytes.tokens};
}

Result<WindowScore> to_score(const std::vector<double>& v) {
  if (v.size() != 9) return corrupt("the log holds a window with other figures");
  return WindowScore{v[0], v[1], v[2], v[3], v[4], {v[5], v[6], v[7], v[8]}};
}

// Without those that have nothing to score behind their prompt. The first token behind it is none
// of that: whoever predicts it still sees the whole prompt.
std::vector<Window> windows_of(const TextTask& task, int prompt) {
  std::vector<Window> windows = make_windows(task.tokens.size(), task.context, task.stride);
  if (prompt == 0) return windows;
  for (Window& window : windows) {
    window.scored = std::min(window.scored, window.tokens - prompt - 1);
  }
  std::erase_if(windows, [](const Window& window) { return window.scored < 1; });
  return windows;
}

class TextRun {
 public:
  TextRun(const TextTask& task, EvalRun& run)
      : task_(task),
        run_(run),
        prompt_(prompt_tokens(task, run)),
        windows_(windows_of(task, prompt_)),
        scores_(run.formats.size(), std::vector<WindowScore>(windows_.size())) {}

  Status score() {
    if (windows_.empty()) {
      return invalid_argument("prompts of " + std::to_string(prompt_) +
                              " tokens leave nothing of this text to score");
    }
    KVLANE_ASSIGN(runners_, make_runners(run_, task_.context));
    for (std::size_t window = 0; window < windows_.size(); ++window) {
      KVLANE_TRY(score(window));
      if (run_.progress) run_.progress("text", window + 1, windows_.size());
    }
    return {};
  }

  void report() {
    for (std::size_t i = 0; i < run_.formats.size(); ++i) {
      const Quality quality = summarise_quality(scores_[i], scores_[0], run_.seed);
      const std::string format = run_.formats[i].name();
      const auto add = [&](const char* metric, Interval value, const char* unit) {
        run_.report.measures.push_back({"text", format, metric, value, unit});
      };
      const auto plain = [](double value) { return Interval{value, kNoInterval, kNoInterval}; };
      add("perplexity", quality.perplexity, "");
      add("ratio", quality.perplexity_ratio, "");
      add("divergence", quality.divergence, "nat/token");
      add("worst", plain(quality.worst), "nat");
      add("agreement", quality.agreement, "share of tokens");
      add("bits", plain(run_.formats[i].is_reference() ? 16 : quality.bytes.bits_sealed()),
          "bit/value");
      add("bytes", plain(quality.bytes.bytes_per_token()), "byte/token");
    }
  }

 private:
  std::string key(std::size_t format, std::size_t window) const {
    return "text|" + run_.formats[format].name() + "|" + std::to_string(task_.context) + "|" +
           std::to_string(task_.stride) + "|" + std::to_string(window) +
           (prompt_ > 0 ? "|" + std::to_string(prompt_) : "");
  }

  Status score(std::size_t window) {
    std::vector<std::size_t> missing;
    std::vector<FormatRunner*> runners;
    for (std::size_t i = 0; i < run_.formats.size(); ++i) {
      if (const auto known = run_.log.find(key(i, window))) {
        KVLANE_ASSIGN(scores_[i][window], to_score(*known));
        continue;
      }
      missing.push_back(i);
      runners.push_back(&runners_[i]);
    }
    if (missing.empty()) return {};
    const Window& place = windows_[window];
    std::vector<WindowScore> scores(missing.size());
    KVLANE_TRY(score_window(runners_[0], runners, task_.tokens.subspan(place.first, place.tokens),
                            place.scored, scores, prompt_));
    for (std::size_t i = 0; i < missing.size(); ++i) {
      scores_[missing[i]][window] = scores[i];
      KVLANE_TRY(run_.log.add(key(missing[i], window), to_values(scores[i])));
    }
    return {};
  }

  const TextTask& task_;
  EvalRun& run_;
  const int prompt_;
  const std::vector<Window> windows_;
  std::vector<std::vector<WindowScore>> scores_;  // [format][window]
  std::vector<FormatRunner> runners_;
};

}  // namespace

int prompt_tokens(const TextTask& task, const EvalRun& run) {
  if (task.prompt) return *task.prompt;
  const bool evicts = std::ranges::any_of(
      run.formats, [](const EvalFormat& format) { return format.eviction.has_value(); });
  return evicts ? task.context / 2 : 0;
}

Status run_text_task(const TextTask& task, EvalRun& run) {
  if (task.tokens.size() < 2) return invalid_argument("a text of one token has nothing to predict");
  if (task.context < 2 || task.context > run.model->context()) {
    return invalid_argument("windows have 2 to " + std::to_string(run.model->context()) +
                            " tokens with this model, not " + std::to_string(task.context));
  }
  if (task.stride < 1 || task.stride > task.context) {
    return invalid_argument("a stride is between 1 and the context of " +
                            std::to_string(task.context) + " tokens, not " +
                            std::to_string(task.stride));
  }
  const int prompt = prompt_tokens(task, run);
  if (prompt < 0 || prompt > task.context - 2) {
    return invalid_argument("the prompt of a window of " + std::to_string(task.context) +
                            " tokens has 0 to " + std::to_string(task.context - 2) + ", not " +
                            std::to_string(prompt));
  }
  for (const EvalFormat& format : run.formats) {
    if (format.eviction && prompt == 0) {
      return invalid_argument(format.name() +
                              " evicts tokens when a prompt ends: windows need a prompt");
    }
    if (!format.kv || !format.kv->own_block().sees_ahead) continue;
    return unsupported("with KV format '" + format.name() +
                       "' a token can see later ones of its block: its perplexity means nothing");
  }
  TextRun text(task, run);
  KVLANE_TRY(text.score());
  text.report();
  return {};
}

}  // namespace kvlane
