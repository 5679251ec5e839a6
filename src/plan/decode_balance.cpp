// Gives machines most of their share in one go, and levels them with what is left.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_balance.h"

#include <algorithm>
#include <numeric>

#include "plan/decode_cuts.h"

namespace kvlane {
namespace {

// A machine gets most of its share in one go if that is so many of the widest runs; the makespan is
// at most one run more than the share, a sixth of it.
constexpr int kShareRunsMin = 6;

bool shares_are_long(const DecodeCuts& cuts) {
  return cuts.run_tokens > 0 && cuts.share >= kShareRunsMin * cuts.widest_run;
}

}  // namespace

void DecodeBalancer::add_piece(int sequence, int kv_head, std::int64_t first, std::int64_t end) {
  pieces_.push_back(
      {sequence, kv_head, static_cast<std::int32_t>(first), static_cast<std::int32_t>(end)});
}

const WorkPlan& DecodeBalancer::share_pieces(const DecodeCuts& cuts, bool longest_first) {
  pieces_.clear();
  work_.clear();
  cuts.for_each_piece(
      [&](int sequence, int kv_head, std::int64_t first, std::int64_t end, std::int64_t work) {
        add_piece(sequence, kv_head, first, end);
        work_.push_back(work);
      });
  if (longest_first) return balancer_.balance(work_, cuts.machines);
  balancer_.begin(cuts.machines);
  balancer_.add_round_robin(work_);
  return balancer_.finish();
}

// Task after task, each machine gets as many runs as leave room for one in its share. Runs that are
// left then are shared longest first. Wide heads come first, so that these are small.
void DecodeBalancer::fill_and_level(const DecodeCuts& cuts) {
  pieces_.clear();
  work_.clear();
  balancer_.begin(cuts.machines);
  wide_first_.resize(cuts.heads.size());
  std::iota(wide_first_.begin(), wide_first_.end(), 0);
  std::stable_sort(wide_first_.begin(), wide_first_.end(),
                   [&](int a, int b) { return key_work(cuts.heads[a]) > key_work(cuts.heads[b]); });
  const std::int64_t filled = cuts.share - cuts.widest_run;
  std::int64_t room = filled;  // of the machine that is being filled
  int machine = 0;
  for (const int kv_head : wide_first_) {
    const std::int64_t width = key_work(cuts.heads[kv_head]);
    const std::int64_t run = cuts.run_tokens * width;
    for (int sequence = 0; sequence < static_cast<int>(cuts.tokens.size()); ++sequence) {
      const std::int64_t all = cuts.tokens[sequence];
      std::int64_t first = 0;
      while (first < all && machine < cuts.machines) {
        const bool fits = (all - first) * width <= room;
        const std::int64_t end = fits ? all : first + room / run * cuts.run_tokens;
        if (first < end) {
          add_piece(sequence, kv_head, first, end);
          balancer_.give(machine, (end - first) * width);
          room -= (end - first) * width;
          first = end;
        }
        if (!fits) {
          ++machine;
          room = filled;
        }
      }
      for (; first < all; first += cuts.run_tokens) {
        const std::int64_t end = std::min(all, first + cuts.run_tokens);
        add_piece(sequence, kv_head, first, end);
        work_.push_back((end - first) * width);
      }
    }
  }
  balancer_.add_longest_first(work_);
}

const DecodeBalance& DecodeBalancer::balance(std::span<const std::int32_t> tokens,
                                             std::span<const HeadWidths> heads,
                                             const DecodeBalanceShape& shape) {
  const DecodeCuts cuts(tokens, heads, shape);
  const WorkPlan* plan = nullptr;
  if (shape.longest_first && shares_are_long(cuts)) {
    fill_and_level(cuts);
    if (balancer_.makespan() <= round_robin_makespan(cuts, loads_)) plan = &balancer_.finish();
  }
  if (plan == nullptr) plan = &share_pieces(cuts, shape.longest_first);
  plan_.pieces.resize(pieces_.size());
  std::transform(plan->tasks.begin(), plan->tasks.end(), plan_.pieces.begin(),
                 [&](std::int32_t task) { return pieces_[task]; });
  plan_.first = plan->first;
  plan_.total = plan->total;
  plan_.makespan = plan->makespan;
  return plan_;
}

}  // namespace kvlane
