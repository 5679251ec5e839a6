// How decode attention of a coded cache on a GPU is cut into units of work: of sealed pages, and of
// the rows of the window. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/kv_window.h"
#include "plan/decode_units.h"
#include "plan/narrow_decode_plan.h"

namespace kvlane {

// Units of both kinds write partial states of one numbering: of a sequence those of its sealed
// pages come first.
struct CodedDecodePlan {
  std::vector<DecodeUnit> sealed, rows;   // longest first
  std::vector<std::int32_t> first_state;  // [sequences + 1], as DecodePlan has it
};

// Of sequences with so many tokens each, the last of which is the query's; `sealed` and `rows` are
// what kernels of either kind take, with as many heads. A sequence is cut by its own length alone.
CodedDecodePlan plan_coded_decode(std::span<const std::int32_t> tokens, const KvWindow& window,
                                  const DecodeShape& sealed, const DecodeShape& rows);

// The same of narrow pages, whose runs a planner shares (plan/narrow_decode_plan.h).
struct NarrowCodedPlan {
  std::vector<NarrowSpan> sealed;         // [sequences]
  std::vector<DecodeUnit> rows;           // longest first
  std::vector<std::int32_t> first_state;  // [sequences + 1], as DecodePlan has it
};
NarrowCodedPlan plan_narrow_coded_decode(std::span<const std::int32_t> tokens,
                                         const KvWindow& window, const DecodeShape& rows);

}  // namespace kvlane
