// How decode attention over sealed pages of different widths is shared among the blocks of threads
// of a persistent grid on a GPU: which runs of pages each of them takes, and where states go.
//
// Cuts and balance are DecodeBalancer's. A run leaves a state a query head, whatever piece it is
// in, so no bit depends on how many blocks of threads there are, nor on company.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/decode_balance.h"
#include "plan/decode_units.h"

namespace kvlane {

// Blocks of a run: 1,024 tokens, four pages for each warp. A state costs memory traffic, and where
// a run begins or ends its warps wait for each other.
inline constexpr int kNarrowRunBlocks = 2 * kDecodeUnitBlocksMin;

// The sealed blocks [first_block, end_block) of a sequence; its states are [runs][heads], from
// first_state on.
struct NarrowSpan {
  std::int32_t first_block, end_block;
  std::int32_t first_state;

  constexpr int runs() const {
    return (end_block - first_block + kNarrowRunBlocks - 1) / kNarrowRunBlocks;
  }
  friend bool operator==(const NarrowSpan&, const NarrowSpan&) = default;
};

// Runs of a KV head's pages of one sequence, for all query heads of the group. 32 bytes, as two
// loads take them.
struct alignas(16) NarrowPiece {
  std::int32_t sequence;
  std::int32_t first_block, end_block;  // of the sequence: whole runs, but for its last one
  std::int32_t first_query;             // of all heads: the group's first one
  std::int32_t first_state;             // of that query in the first run; of the next `heads` later
  std::int32_t page;                    // bytes from the begin of a slab to the KV head's page
  std::int32_t k, v;                    // widths
};

struct NarrowDecodeShape {
  int heads;                  // query heads; a multiple of the number of KV heads
  int machines;               // blocks of threads; at least 1
  bool longest_first = true;  // else round-robin: the baseline
};

struct NarrowDecodePlan {
  std::vector<NarrowPiece> pieces;  // machine m does those from first[m] to first[m + 1] - 1
  std::vector<std::int32_t> first;  // [machines + 1]
};

// Thread-compatible; keeps its memory between calls.
class NarrowDecodePlanner {
 public:
  // `widths` are the KV heads of one layer, whose pages have 128 (k + v) bytes and lie one after
  // another in a slab. Sequences are numbered as they come; a span without blocks has no piece. The
  // result is valid until the next call.
  const NarrowDecodePlan& plan(std::span<const NarrowSpan> spans,
                               std::span<const HeadWidths> widths, const NarrowDecodeShape& shape);

 private:
  NarrowDecodePlan plan_;
  DecodeBalancer balancer_;
  std::vector<std::int32_t> tokens_;  // of sequences
  std::vector<std::int32_t> pages_;   // where those of KV heads begin
};

}  // namespace kvlane
