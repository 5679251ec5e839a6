// What a format costs in quality, token by token: every format reads the same text, the one in 16
// bits beside it (teacher-forced).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/format_runner.h"
#include "eval/windows.h"
#include "kvlane/status.h"

namespace kvlane {

// Sums over the scored tokens of one window.
struct WindowScore {
  double tokens = 0;
  double loss = 0;        // -log p of the text, nats
  double divergence = 0;  // KL(bf16 || format), nats
  double agreeing = 0;    // tokens where both have the same most likely next token
  double worst = 0;       // the largest divergence of one token
  CacheBytes bytes;       // at the window's end
};

// Reads one window in 16 bits and in each of `formats`, in step; scores[i] belongs to formats[i].
// Its first `prompt` tokens are a prompt that ends, if there are any; none of them is scored.
// All runners are for this model and have room for the window. An error names the format.
Status score_window(FormatRunner& reference, std::span<FormatRunner* const> formats,
                    std::span<const std::int32_t> tokens, int scored, std::span<WindowScore> scores,
                    int prompt = 0);

// Of one format over all windows, with 95 % intervals of the paired bootstrap over windows.
struct Quality {
  Interval perplexity;
  Interval perplexity_ratio;  // to that of 16 bits
  Interval divergence;        // mean a token, nats
  Interval agreement;         // share of tokens, 0 ... 1
  double worst = 0;
  double tokens = 0;
  CacheBytes bytes;
};

// scores[i] and reference[i] belong to the same window; at least one.
Quality summarise_quality(std::span<const WindowScore> scores,
                          std::span<const WindowScore> reference, std::uint64_t seed);

}  // namespace kvlane
