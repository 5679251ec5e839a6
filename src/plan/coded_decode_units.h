// How decode attention of a coded cache on a GPU is cut into units of work: of sealed pages, and of
// the rows of the window. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/kv_window.h"
#include "plan/decode_units.h"

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

}  // namespace kvlane
