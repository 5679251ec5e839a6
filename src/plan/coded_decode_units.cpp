// Cuts what a query sees into runs of sealed pages and of rows, and these into units.
// SPDX-License-Identifier: Apache-2.0
#include "plan/coded_decode_units.h"

#include <algorithm>

#include "format/shape.h"

namespace kvlane {
namespace {

// Tokens [begin, end) of sequence `sequence`: appends their units, whose states begin at `state`.
// Gives where the next ones begin.
int append(std::vector<DecodeUnit>& units, const DecodeShape& shape, int sequence, int begin,
           int end, int state) {
  if (begin >= end) return state;
  const int step = kBlockTokens * decode_unit_blocks(end - begin, shape);
  const int group = shape.heads / shape.kv_heads;
  for (int first = begin; first < end; first += step, state += shape.heads) {
    for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int query = 0; query < group; query += shape.queries) {
        const int head = kv_head * group + query;
        units.push_back({sequence, kv_head, head, std::min(shape.queries, group - query), first,
                         std::min(end, first + step), state + head});
      }
    }
  }
  return state;
}

void sort_longest_first(std::vector<DecodeUnit>& units) {
  std::stable_sort(units.begin(), units.end(), [](const DecodeUnit& a, const DecodeUnit& b) {
    return a.end_token - a.first_token > b.end_token - b.first_token;
  });
}

// What a sequence with so many tokens, at least one, reads sealed; all else it reads as rows.
struct Sealed {
  int begin, end;
};
Sealed sealed_of(int tokens, const KvWindow& window) {
  const int own = (tokens - 1) / kBlockTokens;
  const int sink = std::min(window.sink, own) * kBlockTokens;
  return {sink, std::max(sink, (own - window.recent) * kBlockTokens)};
}
int append_rows(std::vector<DecodeUnit>& units, const DecodeShape& shape, int sequence, int tokens,
                const Sealed& sealed, int state) {
  if (sealed.begin == sealed.end) return append(units, shape, sequence, 0, tokens, state);
  state = append(units, shape, sequence, 0, sealed.begin, state);
  return append(units, shape, sequence, sealed.end, tokens, state);
}

}  // namespace

CodedDecodePlan plan_coded_decode(std::span<const std::int32_t> tokens, const KvWindow& window,
                                  const DecodeShape& sealed, const DecodeShape& rows) {
  CodedDecodePlan plan;
  int state = 0;
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    plan.first_state.push_back(state);
    const int count = tokens[sequence];
    if (count == 0) continue;
    const Sealed own = sealed_of(count, window);
    state = append(plan.sealed, sealed, sequence, own.begin, own.end, state);
    state = append_rows(plan.rows, rows, sequence, count, own, state);
  }
  plan.first_state.push_back(state);
  sort_longest_first(plan.sealed);
  sort_longest_first(plan.rows);
  return plan;
}

NarrowCodedPlan plan_narrow_coded_decode(std::span<const std::int32_t> tokens,
                                         const KvWindow& window, const DecodeShape& rows) {
  NarrowCodedPlan plan;
  int state = 0;
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    plan.first_state.push_back(state);
    const int count = tokens[sequence];
    const Sealed own = count == 0 ? Sealed{0, 0} : sealed_of(count, window);
    plan.sealed.push_back({own.begin / kBlockTokens, own.end / kBlockTokens, state});
    if (count == 0) continue;
    state += plan.sealed.back().runs() * rows.heads;
    state = append_rows(plan.rows, rows, sequence, count, own, state);
  }
  plan.first_state.push_back(state);
  sort_longest_first(plan.rows);
  return plan;
}

}  // namespace kvlane
