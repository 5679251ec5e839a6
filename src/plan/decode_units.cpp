// Cuts sequences into units for decode attention.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_units.h"

#include <algorithm>

#include "format/shape.h"

namespace kvlane {
namespace {

int divide_up(int a, int b) { return (a + b - 1) / b; }

// Units of one range of blocks: they run side by side.
int columns_of(const DecodeShape& shape) {
  return shape.kv_heads * divide_up(shape.heads / shape.kv_heads, shape.queries);
}

}  // namespace

int decode_run_blocks(int tokens, const DecodeShape& shape) {
  const int splits = std::max(1, shape.units / columns_of(shape));
  const int blocks = std::max(kDecodeUnitBlocksMin, divide_up(blocks_for(tokens), splits));
  return std::min(shape.most, divide_up(std::min(blocks, shape.most), shape.step) * shape.step);
}

int decode_runs(int tokens, const DecodeShape& shape) {
  return columns_of(shape) * divide_up(blocks_for(tokens), decode_run_blocks(tokens, shape));
}

int append_units(std::vector<DecodeUnit>& units, const DecodeShape& shape, int runs, int sequence,
                 int begin, int end, int state) {
  if (begin >= end) return state;
  const int blocks = decode_run_blocks(end - begin, shape);
  // As many as leave no place of the device empty, or few of them.
  const int wanted = shape.places == 0 ? 1 : (4 * runs + shape.places) / (4 * shape.places);
  const int of_unit = std::clamp(wanted, 1, std::max(1, shape.most / blocks));
  const int run = kBlockTokens * blocks, group = shape.heads / shape.kv_heads;
  for (int first = begin; first < end;) {
    const int tokens = std::min(of_unit * run, end - first);
    for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int query = 0; query < group; query += shape.queries) {
        const int head = kv_head * group + query;
        units.push_back({sequence, kv_head, head, std::min(shape.queries, group - query), first,
                         first + tokens, state + head, run});
      }
    }
    first += tokens;
    state += divide_up(tokens, run) * shape.heads;
  }
  return state;
}

void sort_longest_first(std::vector<DecodeUnit>& units) {
  std::stable_sort(units.begin(), units.end(), [](const DecodeUnit& a, const DecodeUnit& b) {
    return a.end_token - a.first_token > b.end_token - b.first_token;
  });
}

DecodePlan plan_decode(std::span<const std::int32_t> tokens, const DecodeShape& shape) {
  DecodePlan plan;
  plan.first_state.reserve(tokens.size() + 1);
  int runs = 0;
  for (const std::int32_t count : tokens) runs += decode_runs(count, shape);
  int state = 0;
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    plan.first_state.push_back(state);
    state = append_units(plan.units, shape, runs, sequence, 0, tokens[sequence], state);
  }
  plan.first_state.push_back(state);
  sort_longest_first(plan.units);
  return plan;
}

}  // namespace kvlane
