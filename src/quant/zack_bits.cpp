// Steps of all planes in a queue, the best first.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_bits.h"

#include <cmath>
#include <queue>
#include <string>

#include "format/shape.h"
#include "quant/format_text.h"
#include "quant/zack_ranks.h"

namespace kvlane::zack {
namespace {

// A choice for a plane, and what a byte more than the choice before saves.
struct Step {
  double gain = 0;
  std::size_t plane = 0;
  PlaneCodes codes{};
  double error = 0;

  // The better one comes first, of equal ones the earlier plane's.
  friend bool operator<(const Step& a, const Step& b) {
    return a.gain != b.gain ? a.gain < b.gain : a.plane > b.plane;
  }
};

// Errors of one plane: [kCodeBits][widths].
class Plane {
 public:
  Plane(std::size_t index, std::span<const float> errors)
      : index_(index), errors_(errors), widths_(errors.size() / kCodeBits.size()) {}

  Step first() const { return {0, index_, {kWidthStep, kCodeBits[0]}, errors_[0]}; }

  // The choice of more bytes that saves most error a byte, of equal ones that of most bytes;
  // `gain` is 0 when none saves anything.
  Step next(const Step& from) const {
    const std::size_t bytes = plane_bytes(from.codes);
    Step best{0, index_, from.codes, from.error};
    for (std::size_t i = 0; i < errors_.size(); ++i) {
      const PlaneCodes codes{kWidthStep * static_cast<int>(i % widths_ + 1),
                             kCodeBits[i / widths_]};
      if (plane_bytes(codes) <= bytes || !(errors_[i] < from.error)) continue;
      const double gain =
          (from.error - errors_[i]) / static_cast<double>(plane_bytes(codes) - bytes);
      const bool same = gain == best.gain && plane_bytes(codes) > plane_bytes(best.codes);
      if (gain > best.gain || same) best = {gain, index_, codes, errors_[i]};
    }
    return best;
  }

 private:
  std::size_t index_;
  std::span<const float> errors_;
  std::size_t widths_;
};

Status check(std::span<const float> errors) {
  for (const float error : errors) {
    if (!std::isfinite(error) || error < 0) {
      return invalid_argument("errors of codes are not finite or negative");
    }
  }
  return {};
}

}  // namespace

std::size_t plane_bytes(PlaneCodes codes) {
  const auto width = static_cast<std::size_t>(codes.width);
  return width * codes.bits * kBlockTokens / 8 + 2 * (width + kBlockTokens);
}

Result<std::vector<HeadCodes>> choose_codes(const Errors& errors, std::int64_t budget) {
  KVLANE_TRY(check(errors.k));
  KVLANE_TRY(check(errors.v));
  const std::size_t choices = kCodeBits.size() * (errors.head_dim / kWidthStep);
  const std::size_t heads = errors.k.size() / choices;
  std::vector<Plane> planes;
  std::vector<Step> chosen;
  std::priority_queue<Step> steps;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < 2 * heads; ++i) {
    const auto of = i % 2 == 0 ? errors.k : errors.v;
    planes.emplace_back(i, of.subspan(i / 2 * choices, choices));
    chosen.push_back(planes.back().first());
    steps.push(planes.back().next(chosen.back()));
    bytes += static_cast<std::int64_t>(plane_bytes(chosen.back().codes));
  }
  const std::int64_t values = std::int64_t{errors.head_dim} * kBlockTokens * chosen.size();
  const std::int64_t bytes_max = values * budget / (8 * kShareParts);
  if (bytes > bytes_max) {
    const std::int64_t least = (bytes * 8 * kShareParts + values - 1) / values;
    return invalid_argument("fewer than " + share_text(static_cast<int>(least)) +
                            " bits a value cannot be met");
  }
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    if (step.gain == 0) continue;
    Step& now = chosen[step.plane];
    bytes += static_cast<std::int64_t>(plane_bytes(step.codes) - plane_bytes(now.codes));
    if (bytes > bytes_max) break;
    now = step;
    steps.push(planes[step.plane].next(now));
  }
  std::vector<HeadCodes> codes(heads);
  for (std::size_t i = 0; i < heads; ++i) codes[i] = {chosen[2 * i].codes, chosen[2 * i + 1].codes};
  return codes;
}

}  // namespace kvlane::zack
