// Perplexity, divergence and agreement over a text: the task "text".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "eval/eval_run.h"

namespace kvlane {

struct TextTask {
  std::span<const std::int32_t> tokens;  // at least two
  int context = 0;                       // of a window, at least two tokens, at most the model's
  int stride = 0;                        // 1 ... context
  // The first tokens of each window that are computed as its prompt and not scored. If nobody says:
  // half of the context where a format evicts tokens when a prompt ends, else none.
  std::optional<int> prompt;
};

// What nobody said included.
int prompt_tokens(const TextTask& task, const EvalRun& run);

// Scores the windows that the run's log does not have yet, and reports on all formats. Measures:
// perplexity, ratio (of perplexities to bf16's), divergence (mean KL, nats), worst (of one token),
// agreement (share of tokens with the same most likely next one), bits (of a sealed value, all
// metadata included; where tokens are evicted of any value, those of evicted ones taking none),
// bytes (of KV a token, at the end of a window).
Status run_text_task(const TextTask& task, EvalRun& run);

}  // namespace kvlane
