// How tasks of decode attention are cut into pieces that can be dealt out. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "format/head_widths.h"
#include "plan/decode_balance.h"

namespace kvlane {

// Pieces of a task: the first `longer` have `runs` + 1 runs, the others `runs`, and the last one
// ends with the task. One piece where it stays whole.
struct TaskCut {
  std::int64_t parts;
  std::int64_t runs;
  std::int64_t longer;
};

// A batch, and what follows from its work: what DecodeBalancer is asked for, which says more.
// Refers to what it is made of.
struct DecodeCuts {
  std::span<const std::int32_t> tokens;
  std::span<const HeadWidths> heads;
  int machines;
  std::int64_t run_tokens;  // 0: tasks stay whole
  std::int64_t share;       // of a machine, rounded down
  std::int64_t piece_most;  // work of a piece of a task that is cut, unless it is one run
  std::int64_t widest_run;  // its work

  DecodeCuts(std::span<const std::int32_t> sequences, std::span<const HeadWidths> kv_heads,
             const DecodeBalanceShape& shape);

  // Of a sequence's tokens, at least one, for a head whose tokens cost `width` each.
  TaskCut cut(std::int64_t end, std::int64_t width) const;

  // take(sequence, KV head, first token, end, work) for all pieces in the order of sequences and
  // heads.
  template <class Take>
  void for_each_piece(const Take& take) const;
};

// When the last machine is done if all pieces are dealt round-robin, with `loads` to work in. Takes
// as long as there are tasks, however many pieces they are.
std::int64_t round_robin_makespan(const DecodeCuts& cuts, std::vector<std::int64_t>& loads);

template <class Take>
void DecodeCuts::for_each_piece(const Take& take) const {
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    const std::int64_t end = tokens[sequence];
    if (end == 0) continue;
    for (int kv_head = 0; kv_head < static_cast<int>(heads.size()); ++kv_head) {
      const std::int64_t width = key_work(heads[kv_head]);
      const TaskCut task = cut(end, width);
      std::int64_t first = 0;
      for (std::int64_t part = 0; part < task.parts; ++part) {
        const std::int64_t runs = task.runs + (part < task.longer ? 1 : 0);
        const std::int64_t last = part + 1 < task.parts ? first + runs * run_tokens : end;
        take(sequence, kv_head, first, last, (last - first) * width);
        first = last;
      }
    }
  }
}

}  // namespace kvlane
