// Softmax in double precision over logits in float.
// SPDX-License-Identifier: Apache-2.0
#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

namespace kvlane {
namespace {

struct Softmax {
  std::int32_t top = 0;
  double log_total = 0;
};

Softmax softmax_of(std::span<const float> logits) {
  Softmax result;
  result.top =
      static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float max = logits[result.top];
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - max);
  result.log_total = max + std::log(total);
  return result;
}

}  // namespace

Reference::Reference(std::span<const float> logits) : logits_(logits) {
  const Softmax softmax = softmax_of(logits);
  log_total_ = softmax.log_total;
  top_ = softmax.top;
  finite_ = std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
}

TokenScore Reference::compare(std::span<const float> logits, std::int32_t target) const {
  const Softmax tested = softmax_of(logits);
  // Sum of p * (log p - log q). The difference of the log totals belongs inside: p sums to 1 only
  // nearly, and logits that differ by a constant are the same distribution.
  const auto shift = static_cast<float>(log_total_);
  const double totals = log_total_ - tested.log_total;
  double divergence = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    divergence += double{std::exp(logits_[i] - shift)} * (double{logits_[i]} - logits[i] - totals);
  }
  // Rounding may leave it a hair below zero, where no divergence is; it keeps what is not a number.
  return {tested.log_total - logits[target], divergence < 0 ? 0 : divergence, tested.top == top_};
}

}  // namespace kvlane
