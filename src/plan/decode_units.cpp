// Cuts sequences into units for decode attention.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_units.h"

#include <algorithm>

#include "format/shape.h"
#include "plan/work_balance.h"

namespace kvlane {

int decode_unit_blocks(int tokens, const DecodeShape& shape) {
  // Units of one range of blocks: they run side by side.
  const int columns = shape.kv_heads * divide_up(shape.heads / shape.kv_heads, shape.queries);
  const int splits = std::max(1, shape.units / columns);
  const int blocks = std::max(kDecodeUnitBlocksMin, divide_up(blocks_for(tokens), splits));
  return std::min(shape.most, divide_up(std::min(blocks, shape.most), shape.step) * shape.step);
}

DecodePlan plan_decode(std::span<const std::int32_t> tokens, const DecodeShape& shape) {
  const int group = shape.heads / shape.kv_heads;
  DecodePlan plan;
  plan.first_state.reserve(tokens.size() + 1);
  int states = 0;
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    plan.first_state.push_back(states);
    const int end = tokens[sequence];
    const int step = decode_unit_blocks(end, shape) * kBlockTokens;
    for (int first = 0; first < end; first += std::min(step, end - first)) {
      for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        for (int query = 0; query < group; query += shape.queries) {
          const int head = kv_head * group + query;
          plan.units.push_back({sequence, kv_head, head, std::min(shape.queries, group - query),
                                first, first + std::min(step, end - first), states + head});
        }
      }
      states += shape.heads;
    }
  }
  plan.first_state.push_back(states);
  // Long ones first, so that none starts when all others are done. Those that read the same pages
  // stay side by side, so that the second finds them in the cache.
  std::stable_sort(plan.units.begin(), plan.units.end(),
                   [](const DecodeUnit& a, const DecodeUnit& b) {
                     return a.end_token - a.first_token > b.end_token - b.first_token;
                   });
  return plan;
}

}  // namespace kvlane
