// Shares decode attention over KV heads of different widths among machines: threads of a CPU, or
// SMs of a GPU, each of which does a list of pieces.
//
// A task is a sequence and a KV head, with all query heads of the group. Its work is its tokens
// times key_work(): what is read of K and V, and so what one token costs, grows with both.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/key_work.h"
#include "plan/work_balance.h"

namespace kvlane {

// Pieces that make up a machine's share, where they can be so short and are shared longest first or
// round-robin: what is left to be idle is a part of a piece (lab/balance).
inline constexpr int kDecodePiecesMachine = 16;

struct DecodeBalanceShape {
  int machines;  // at least 1
  // Blocks of a run, at whose multiples a task may be cut; 0: every task stays whole.
  int split_blocks;
  bool longest_first = true;  // else round-robin in the order of sequences and heads: the baseline
  // No piece that is shared is more than this part of a machine's share, or it is one run.
  int pieces = kDecodePiecesMachine;
};

// Tokens of one sequence that one KV head attends to: all, or some runs of them. It leaves a
// partial state for each of its runs and never merges two, which is left to who puts all states of
// a task together: so results do not depend on how many runs are a piece.
struct DecodePiece {
  std::int32_t sequence;
  std::int32_t kv_head;
  std::int32_t first_token;  // a multiple of split_blocks * kBlockTokens
  std::int32_t end_token;    // likewise, or the end of the sequence
};

struct DecodeBalance {
  std::vector<DecodePiece> pieces;  // machine m does those from first[m] to first[m + 1] - 1
  std::vector<std::int32_t> first;  // [machines + 1]
  std::int64_t total = 0;           // work of all pieces
  std::int64_t makespan = 0;        // of the machine that is done last
};

struct DecodeCuts;

// Where a machine's share is six of the widest runs and more, most of it comes in one go: as many
// runs of one task after the other as fill it but for one run. What is left of all tasks then, or
// all of them where shares are shorter, is cut and goes to the least loaded machine, longest first.
// No plan is done later than round-robin over the same cuts, and none takes 4/3 of the time of the
// best. Thread-compatible; keeps its memory between calls.
class DecodeBalancer {
 public:
  // Of sequences with so many tokens each, of which the query sees all; one without tokens has no
  // piece. `heads` are the KV heads of one layer. The result depends on nothing else, and is valid
  // until the next call.
  const DecodeBalance& balance(std::span<const std::int32_t> tokens,
                               std::span<const HeadWidths> heads, const DecodeBalanceShape& shape);

 private:
  void add_piece(int sequence, int kv_head, std::int64_t first, std::int64_t end);
  const WorkPlan& share_pieces(const DecodeCuts& cuts, bool longest_first);
  void fill_and_level(const DecodeCuts& cuts);

  DecodeBalance plan_;
  std::vector<DecodePiece> pieces_;
  std::vector<std::int64_t> work_;   // of those that are shared longest first
  std::vector<std::int64_t> loads_;  // of machines, if pieces were dealt round-robin
  std::vector<int> wide_first_;      // KV heads
  WorkBalancer balancer_;
};

}  // namespace kvlane
