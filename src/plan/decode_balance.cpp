// Cuts decode tasks into pieces and shares them.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_balance.h"

#include <algorithm>
#include <numeric>

#include "format/shape.h"

namespace kvlane {
// Pieces of a task differ by one run at most.
void DecodeBalancer::cut(std::span<const std::int32_t> tokens, std::span<const HeadWidths> heads,
                         const DecodeBalanceShape& shape) {
  std::int64_t all_tokens = 0, all_widths = 0;
  for (const std::int32_t count : tokens) all_tokens += count;
  for (const HeadWidths& head : heads) all_widths += key_work(head);
  const std::int64_t most = std::max(
      std::int64_t{1}, all_tokens * all_widths / (std::int64_t{shape.machines} * shape.pieces));
  const std::int64_t run_tokens = std::int64_t{shape.split_blocks} * kBlockTokens;
  pieces_.clear();
  work_.clear();
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    const std::int64_t end = tokens[sequence];
    if (end == 0) continue;
    const std::int64_t runs = run_tokens > 0 ? divide_up(end, run_tokens) : 1;
    for (int kv_head = 0; kv_head < static_cast<int>(heads.size()); ++kv_head) {
      const int width = key_work(heads[kv_head]);
      const std::int64_t parts = std::min(runs, divide_up(end * width, most));
      std::int64_t first = 0;
      for (std::int64_t part = 1; part <= parts; ++part) {
        const std::int64_t last = part < parts ? runs * part / parts * run_tokens : end;
        pieces_.push_back(
            {sequence, kv_head, static_cast<std::int32_t>(first), static_cast<std::int32_t>(last)});
        work_.push_back((last - first) * width);
        first = last;
      }
    }
  }
}

const DecodeBalance& DecodeBalancer::balance(std::span<const std::int32_t> tokens,
                                             std::span<const HeadWidths> heads,
                                             const DecodeBalanceShape& shape) {
  cut(tokens, heads, shape);
  if (!shape.longest_first) {
    balancer_.begin(shape.machines);
    balancer_.add_round_robin(work_);
  }
  const WorkPlan& plan =
      shape.longest_first ? balancer_.balance(work_, shape.machines) : balancer_.finish();
  plan_.pieces.resize(pieces_.size());
  std::transform(plan.tasks.begin(), plan.tasks.end(), plan_.pieces.begin(),
                 [&](std::int32_t task) { return pieces_[task]; });
  plan_.first = plan.first;
  plan_.total = plan.total;
  plan_.makespan = plan.makespan;
  return plan_;
}

}  // namespace kvlane
