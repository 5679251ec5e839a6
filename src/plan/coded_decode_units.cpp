// Cuts what a query sees into runs of sealed pages and of rows, and these into units.
// SPDX-License-Identifier: Apache-2.0
#include "plan/coded_decode_units.h"

#include <algorithm>

#include "format/shape.h"

namespace kvlane {
namespace {

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
  if (sealed.begin == sealed.end) {
    return append_units(units, shape, 1, sequence, 0, tokens, state);
  }
  state = append_units(units, shape, 1, sequence, 0, sealed.begin, state);
  return append_units(units, shape, 1, sequence, sealed.end, tokens, state);
}

}  // namespace

CodedDecodePlan plan_coded_decode(std::span<const std::int32_t> tokens, const KvWindow& window,
                                  const DecodeShape& sealed, const DecodeShape& rows) {
  CodedDecodePlan plan;
  int runs = 0;
  for (const std::int32_t count : tokens) {
    if (count == 0) continue;
    const Sealed own = sealed_of(count, window);
    runs += decode_runs(own.end - own.begin, sealed);
  }
  int state = 0;
  for (int sequence = 0; sequence < static_cast<int>(tokens.size()); ++sequence) {
    plan.first_state.push_back(state);
    const int count = tokens[sequence];
    if (count == 0) continue;
    const Sealed own = sealed_of(count, window);
    state = append_units(plan.sealed, sealed, runs, sequence, own.begin, own.end, state);
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
