// The forward pass of a model that ranks compute, as the head sees it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "model/forward_pass.h"
#include "ranks/rank_group.h"

namespace kvlane {

// Of hooks it has on_layer alone. Thread-compatible.
class RankedForward final : public ForwardPass {
 public:
  // The group outlives this.
  RankedForward(RankGroup& group, int vocab) : group_(group), vocab_(vocab) {}

  Status run(std::span<const ForwardSpan> spans, const PassHooks& hooks) override;
  std::span<float> logits(int index) const override;
  const ForwardTimes& times() const override { return times_; }

 private:
  Result<Pass> describe(std::span<const ForwardSpan> spans);
  Status await(const PassHooks& hooks);
  Status take_ends(std::size_t rows, const Status& waited);

  RankGroup& group_;
  const std::size_t vocab_;
  ForwardTimes times_;
  mutable std::vector<float> logits_;
};

}  // namespace kvlane
