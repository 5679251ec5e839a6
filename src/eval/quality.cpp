// Runs formats in step over a window, and sums up.
// SPDX-License-Identifier: Apache-2.0
#include "eval/quality.h"

#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "eval/divergence.h"

namespace kvlane {
namespace {

// Positions whose logits one thread compares at a time.
constexpr int kCompareGrain = 8;

Status not_finite(const std::string& format, std::size_t token) {
  return internal_error(format + ": the logits after token " + std::to_string(token) +
                        " of the window are not finite");
}

// Adds the figures of rows [0, rows) of both runners' logits; targets[i] is the token after row i.
Status compare_rows(const FormatRunner& reference, const FormatRunner& tested,
                    std::span<const std::int32_t> targets, std::size_t first_token,
                    std::vector<TokenScore>& scratch, WindowScore& score) {
  scratch.resize(targets.size());
  parallel_ranges(static_cast<std::int64_t>(targets.size()), kCompareGrain,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t row = first; row < last; ++row) {
                      const int i = static_cast<int>(row);
                      scratch[i] =
                          Reference(reference.logits(i)).compare(tested.logits(i), targets[i]);
                    }
                  });
  for (std::size_t i = 0; i < scratch.size(); ++i) {
    const TokenScore& token = scratch[i];
    if (!std::isfinite(token.divergence) || !std::isfinite(token.loss)) {
      return not_finite(tested.name(), first_token + i);
    }
    score.tokens += 1;
    score.loss += token.loss;
    score.divergence += token.divergence;
    score.agreeing += token.agrees;
    score.worst = std::max(score.worst, token.divergence);
  }
  return {};
}

double total(std::span<const WindowScore> scores, std::span<const int> weights,
             double WindowScore::*member) {
  double sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) sum += weights[i] * scores[i].*member;
  return sum;
}

}  // namespace

Status score_window(FormatRunner& reference, std::span<FormatRunner* const> formats,
                    std::span<const std::int32_t> tokens, int scored, std::span<WindowScore> scores,
                    int prompt) {
  reference.clear();
  for (FormatRunner* format : formats) format->clear();
  std::fill(scores.begin(), scores.end(), WindowScore{});
  std::vector<TokenScore> scratch;
  // Logits after token i predict token i + 1.
  const std::size_t predicting = tokens.size() - scored - 1;
  const std::size_t end = tokens.size() - 1;
  const auto prompt_end = static_cast<std::size_t>(prompt);
  std::size_t part_end = 0;
  for (std::size_t at = 0; at < tokens.size(); at = part_end) {
    if (at > 0 && at == prompt_end) {
      for (FormatRunner* format : formats) KVLANE_TRY(format->end_prompt());
    }
    part_end =
        std::min(at < prompt_end ? prompt_end : tokens.size(), at + FormatRunner::kAppendMax);
    const auto part = tokens.subspan(at, part_end - at);
    // Of this part, tokens [first, last) predict something that counts.
    const std::size_t first = std::clamp(predicting, at, at + part.size());
    const std::size_t last = std::min(end, at + part.size());
    // The runner gives logits of the last rows: those of the text's very last token are not used.
    const int rows = static_cast<int>(at + part.size() - first);
    const auto targets =
        last > first ? tokens.subspan(first + 1, last - first) : std::span<const std::int32_t>();
    KVLANE_TRY(reference.append(part, rows));
    for (std::size_t row = 0; row < targets.size(); ++row) {
      if (!Reference(reference.logits(static_cast<int>(row))).finite()) {
        return not_finite(reference.name(), first + row);
      }
    }
    for (std::size_t i = 0; i < formats.size(); ++i) {
      // The reference itself may be among them: it was run.
      if (formats[i] != &reference) KVLANE_TRY(formats[i]->append(part, rows));
      KVLANE_TRY(compare_rows(reference, *formats[i], targets, first, scratch, scores[i]));
    }
  }
  for (std::size_t i = 0; i < formats.size(); ++i) scores[i].bytes = formats[i]->bytes();
  return {};
}

Quality summarise_quality(std::span<const WindowScore> scores,
                          std::span<const WindowScore> reference, std::uint64_t seed) {
  const int windows = static_cast<int>(scores.size());
  const auto mean = [&](double WindowScore::*member) {
    return bootstrap(
        windows,
        [&](std::span<const int> weights) {
          return total(scores, weights, member) / total(scores, weights, &WindowScore::tokens);
        },
        seed);
  };
  Quality quality;
  quality.perplexity = mean(&WindowScore::loss);
  for (double* end :
       {&quality.perplexity.value, &quality.perplexity.low, &quality.perplexity.high}) {
    *end = std::exp(*end);
  }
  quality.perplexity_ratio = bootstrap(
      windows,
      [&](std::span<const int> weights) {
        const double more = total(scores, weights, &WindowScore::loss) -
                            total(reference, weights, &WindowScore::loss);
        return std::exp(more / total(scores, weights, &WindowScore::tokens));
      },
      seed);
  quality.divergence = mean(&WindowScore::divergence);
  quality.agreement = mean(&WindowScore::agreeing);
  for (const WindowScore& score : scores) {
    quality.worst = std::max(quality.worst, score.worst);
    quality.tokens += score.tokens;
    quality.bytes += score.bytes;
  }
  return quality;
}

}  // namespace kvlane
