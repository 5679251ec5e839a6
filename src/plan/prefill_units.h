// How prefill attention on a GPU is cut into units of work for blocks of threads. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlane {

struct PrefillShape {
  int heads;     // query heads; a multiple of kv_heads
  int kv_heads;  // at least 1
  int pairs;     // that a unit takes at most; at least 1
};

// Consecutive query rows of one sequence. K and V of all of them are in the sequence's blocks when
// attention begins.
struct PrefillSpan {
  std::int32_t position;   // of the first row in its sequence; at least 0
  std::int32_t rows;       // may be 0
  std::int32_t first_row;  // in `q` and `out` of the launch
};

// Some pairs (row, query head) of one span and one KV head. Pair i is of row i / group and of query
// head kv_head * group + i % group, where group = heads / kv_heads, so all query heads of a group
// share what is read of K and V.
struct PrefillUnit {
  std::int32_t sequence;  // the number of the span
  std::int32_t kv_head;
  std::int32_t first_pair;
  std::int32_t pairs;
  std::int32_t position;   // of the span
  std::int32_t first_row;  // of the span
};

// Tokens of its sequence that a unit reads: those up to its last row.
constexpr int prefill_tokens(const PrefillUnit& unit, int group) {
  return unit.position + (unit.first_pair + unit.pairs - 1) / group + 1;
}

// Part number `part` of a unit, of up to `pairs` pairs; with none where the unit has fewer parts.
constexpr PrefillUnit part_of_unit(PrefillUnit unit, int part, int pairs) {
  const int begin = part * pairs, left = unit.pairs > begin ? unit.pairs - begin : 0;
  unit.first_pair += begin;
  unit.pairs = left < pairs ? left : pairs;
  return unit;
}

// Longest first. Where a span begins decides which pairs are a unit, but a pair's result is the
// same in every unit (attention/prefill_device.h). The pairs of a span and KV head are at most
// 2^31 - 1.
std::vector<PrefillUnit> plan_prefill(std::span<const PrefillSpan> spans,
                                      const PrefillShape& shape);

}  // namespace kvlane
