// Pieces of a balance in the terms of pages and states.
// SPDX-License-Identifier: Apache-2.0
#include "plan/narrow_decode_plan.h"

#include "format/shape.h"

namespace kvlane {

const NarrowDecodePlan& NarrowDecodePlanner::plan(std::span<const NarrowSpan> spans,
                                                  std::span<const HeadWidths> widths,
                                                  const NarrowDecodeShape& shape) {
  tokens_.clear();
  for (const NarrowSpan& span : spans) {
    tokens_.push_back((span.end_block - span.first_block) * kBlockTokens);
  }
  pages_.clear();
  std::int32_t page = 0;
  for (const HeadWidths& head : widths) {
    pages_.push_back(page);
    page += 2 * kBlockTokens * (head.k + head.v);
  }
  const DecodeBalance& balance = balancer_.balance(tokens_, widths,
                                                   {.machines = shape.machines,
                                                    .split_blocks = kNarrowRunBlocks,
                                                    .longest_first = shape.longest_first});
  const std::int32_t group = shape.heads / static_cast<std::int32_t>(widths.size());
  plan_.first = balance.first;
  plan_.pieces.clear();
  for (const DecodePiece& piece : balance.pieces) {
    const NarrowSpan& span = spans[piece.sequence];
    const std::int32_t first = piece.first_token / kBlockTokens;  // within the span
    plan_.pieces.push_back(
        {.sequence = piece.sequence,
         .first_block = span.first_block + first,
         .end_block = span.first_block + piece.end_token / kBlockTokens,
         .first_query = piece.kv_head * group,
         .first_state =
             span.first_state + first / kNarrowRunBlocks * shape.heads + piece.kv_head * group,
         .page = pages_[piece.kv_head],
         .k = widths[piece.kv_head].k,
         .v = widths[piece.kv_head].v});
  }
  return plan_;
}

}  // namespace kvlane
