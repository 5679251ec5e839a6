// Tails of spectra, sorted.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_ranks.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvlane::zack {
namespace {

Status check_share(int head_dim, int share) {
  if (share > kShareParts) return invalid_argument("more than all dimensions cannot be kept");
  const std::int64_t least = std::int64_t{kWidthStep} * kShareParts;
  if (std::int64_t{share} * head_dim < least) {
    return invalid_argument(
        "a share of " + share_text(share) + " cannot be met: every head keeps at least " +
        std::to_string(kWidthStep) + " of its " + std::to_string(head_dim) + " dimensions");
  }
  return {};
}

// tails[i] is what lies behind (i + 1) * kWidthStep dimensions, as a share of all; a head of zeros
// has nothing behind any.
Status add_tails(std::span<const float> values, Weigh weigh, std::vector<double>& tails) {
  double sum = 0;
  const std::size_t first = tails.size();
  tails.resize(first + values.size() / kWidthStep);
  for (std::size_t i = values.size(); i-- > 0;) {
    const double value = values[i];
    if (!std::isfinite(value) || value < 0 || (i > 0 && values[i - 1] < values[i])) {
      return invalid_argument("singular values are not finite, not negative and descending");
    }
    if ((i + 1) % kWidthStep == 0) tails[first + i / kWidthStep] = sum;
    sum += weigh == Weigh::kEnergies ? value * value : value;
  }
  for (std::size_t i = first; i < tails.size(); ++i) tails[i] = sum > 0 ? tails[i] / sum : 0;
  return {};
}

}  // namespace

Result<Rates> Rates::make(const Spectra& spectra, Weigh weigh) {
  const std::size_t d = spectra.head_dim;
  const std::size_t heads = spectra.k.size() / d;
  Rates rates(spectra.head_dim, 2 * heads);
  for (std::size_t head = 0; head < heads; ++head) {
    KVLANE_TRY(add_tails(spectra.k.subspan(head * d, d), weigh, rates.tails_));
    KVLANE_TRY(add_tails(spectra.v.subspan(head * d, d), weigh, rates.tails_));
  }
  const auto tails = static_cast<std::size_t>(rates.tails());
  for (std::size_t plane = 0; plane < rates.planes_; ++plane) {
    const double* const of = &rates.tails_[plane * tails];
    // Behind all dimensions there is nothing: that is no step.
    rates.narrower_.insert(rates.narrower_.end(), of, of + tails - 1);
  }
  std::ranges::sort(rates.narrower_);
  return rates;
}

int Rates::width(std::size_t plane, double threshold) const {
  const double* const of = &tails_[plane * tails()];
  // Tails descend.
  const double* const fits =
      std::partition_point(of, of + tails(), [&](double tail) { return tail > threshold; });
  return kWidthStep * (static_cast<int>(fits - of) + 1);
}

Result<Ranks> Rates::at(int share) const {
  KVLANE_TRY(check_share(head_dim_, share));
  const std::int64_t kept_most = dimensions() * share / kShareParts;
  const std::int64_t missing = dimensions() - kept_most;
  const auto steps = static_cast<std::size_t>((missing + kWidthStep - 1) / kWidthStep);
  Ranks ranks{steps == 0 ? 0 : narrower_[steps - 1], 0, {}};
  std::int64_t kept = 0;
  for (std::size_t head = 0; head < planes_ / 2; ++head) {
    // With nothing to drop even what is zero is kept.
    const HeadWidths widths = steps == 0 ? HeadWidths{head_dim_, head_dim_}
                                         : HeadWidths{width(2 * head, ranks.threshold),
                                                      width(2 * head + 1, ranks.threshold)};
    ranks.widths.push_back(widths);
    kept += widths.k + widths.v;
  }
  ranks.share = static_cast<double>(kept) / static_cast<double>(dimensions());
  return ranks;
}

std::vector<Rates::Step> Rates::steps() const {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < narrower_.size(); ++i) {
    const double kept = static_cast<double>(dimensions()) - kWidthStep * static_cast<double>(i + 1);
    const Step step{narrower_[i], kept / static_cast<double>(dimensions())};
    if (!steps.empty() && steps.back().threshold == step.threshold) {
      steps.back() = step;
    } else {
      steps.push_back(step);
    }
  }
  return steps;
}

Result<Ranks> uniform_ranks(int head_dim, std::size_t heads, int share) {
  KVLANE_TRY(check_share(head_dim, share));
  const int width =
      static_cast<int>(std::int64_t{head_dim} * share / kShareParts) / kWidthStep * kWidthStep;
  return Ranks{0, static_cast<double>(width) / head_dim,
               std::vector<HeadWidths>(heads, {width, width})};
}

}  // namespace kvlane::zack
