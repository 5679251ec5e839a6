// Limits of pieces, and what dealing them round-robin would come to.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_cuts.h"

#include "format/shape.h"
#include "plan/key_work.h"
#include "plan/work_balance.h"

namespace kvlane {

DecodeCuts::DecodeCuts(std::span<const std::int32_t> sequences,
                       std::span<const HeadWidths> kv_heads, const DecodeBalanceShape& shape)
    : tokens(sequences),
      heads(kv_heads),
      machines(shape.machines),
      run_tokens(std::int64_t{shape.split_blocks} * kBlockTokens) {
  std::int64_t all_tokens = 0, all_widths = 0, widest = 0;
  for (const std::int32_t count : tokens) all_tokens += count;
  for (const HeadWidths& head : heads) {
    all_widths += key_work(head);
    widest = std::max<std::int64_t>(widest, key_work(head));
  }
  const std::int64_t total = all_tokens * all_widths;
  share = total / machines;
  piece_most = std::max(std::int64_t{1}, total / (std::int64_t{machines} * shape.pieces));
  widest_run = run_tokens * widest;
}

TaskCut DecodeCuts::cut(std::int64_t end, std::int64_t width) const {
  if (run_tokens == 0 || end * width <= piece_most) return {1, 0, 0};
  const std::int64_t runs = divide_up(end, run_tokens);
  const std::int64_t parts = std::min(runs, divide_up(end * width, piece_most));
  return {parts, runs / parts, runs % parts};
}

namespace {

// Loads as differences to the machine before, so that a row of machines costs two additions.
class Dealing {
 public:
  Dealing(int machines, std::vector<std::int64_t>& steps) : machines_(machines), steps_(steps) {
    steps_.assign(machines + 1, 0);
  }

  // The same work to each of the next `count` machines, round and round.
  void deal(std::int64_t count, std::int64_t work) {
    if (count >= machines_) {
      steps_[0] += count / machines_ * work;
      count %= machines_;
    }
    const int end = next_ + static_cast<int>(count);
    steps_[next_] += work;
    steps_[std::min(end, machines_)] -= work;
    if (end > machines_) {
      steps_[0] += work;
      steps_[end - machines_] -= work;
    }
  }

  void advance(std::int64_t count) {
    count += next_;
    next_ = static_cast<int>(count < machines_ ? count : count % machines_);
  }

  std::int64_t makespan() const {
    std::int64_t load = 0, most = 0;
    for (int machine = 0; machine < machines_; ++machine) {
      load += steps_[machine];
      most = std::max(most, load);
    }
    return most;
  }

 private:
  const int machines_;
  std::vector<std::int64_t>& steps_;
  int next_ = 0;
};

}  // namespace

std::int64_t round_robin_makespan(const DecodeCuts& cuts, std::vector<std::int64_t>& loads) {
  Dealing dealing(cuts.machines, loads);
  for (const std::int64_t end : cuts.tokens) {
    if (end == 0) continue;
    for (const HeadWidths& head : cuts.heads) {
      const std::int64_t width = key_work(head);
      const TaskCut task = cuts.cut(end, width);
      const std::int64_t run = cuts.run_tokens * width;
      const std::int64_t others = (task.parts - 1) * task.runs + task.longer;  // but the last
      dealing.deal(task.longer, run);
      dealing.deal(task.parts - 1, task.runs * run);
      dealing.advance(task.parts - 1);
      dealing.deal(1, end * width - others * run);
      dealing.advance(1);
    }
  }
  return dealing.makespan();
}

}  // namespace kvlane
