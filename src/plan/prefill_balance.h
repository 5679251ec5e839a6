// Shares prefill attention over KV heads of different widths among machines: threads of a CPU, or
// SMs of a GPU, each of which does a list of units. Three steps, each of which an ablation can
// leave out (ZACK, its prefill kernel).
//
// Rows here are pairs of a token and a query head, as PrefillUnit has them. The work of a unit is
// the keys that its rows see, which grow with the token's position, times key_work().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/key_work.h"
#include "plan/prefill_units.h"
#include "plan/work_balance.h"

namespace kvlane {

// Rows of a unit of the widest head, B_r in the paper; and that units are multiples of, as the
// matrix unit's tiles are.
inline constexpr int kPrefillUnitRows = 64;
inline constexpr int kPrefillRowsStep = 16;
// Keys of a tile: what their scores take of the accumulators.
inline constexpr int kPrefillKeys = 64;

struct PrefillBalanceSteps {
  // Narrow heads have more rows a unit, so that units are alike; else kPrefillUnitRows.
  bool rows_by_width = true;
  // Tasks of the last round, in which machines would be idle, are cut to a machine's share of it.
  bool redistribute = true;
  // Long units first, each to the least loaded machine; else round-robin in the order of sequences,
  // heads and rows.
  bool longest_first = true;
};

struct PrefillBalanceShape {
  int group;     // query heads of a KV head; at least 1
  int machines;  // at least 1
  // Numbers that a machine can keep of a unit's outputs and of one tile's scores.
  int accumulators_max = 128 * (128 + kPrefillKeys);
  PrefillBalanceSteps steps = {};
};

struct PrefillBalance {
  std::vector<PrefillUnit> units;   // machine m does those from first[m] to first[m + 1] - 1
  std::vector<std::int32_t> first;  // [machines + 1]
  std::int64_t total = 0;           // work of all units
  std::int64_t makespan = 0;        // of the machine that is done last
};

// Rows of a unit of `head` among heads of which the widest has work `widest` a key: rows *
// key_work() as of kPrefillUnitRows of the widest, rounded up to a multiple of kPrefillRowsStep. No
// more than have room in `accumulators_max`, but kPrefillRowsStep.
int prefill_rows(const HeadWidths& head, int widest, int accumulators_max);

// Keys that the rows of a unit see, all together.
std::int64_t prefill_visible_keys(const PrefillUnit& unit, int group);

// Thread-compatible; keeps its memory between calls.
class PrefillBalancer {
 public:
  // `heads` are the KV heads of one layer; at most 2^30 tokens a sequence. The result depends on
  // nothing else, and is valid until the next call. Which rows are a unit is no matter of bits: see
  // plan_prefill().
  const PrefillBalance& balance(std::span<const PrefillSpan> spans,
                                std::span<const HeadWidths> heads,
                                const PrefillBalanceShape& shape);

 private:
  struct Key {
    std::int64_t work;
    std::int32_t number;
  };

  void cut(std::span<const PrefillSpan> spans, std::span<const HeadWidths> heads,
           const PrefillBalanceShape& shape);
  void take_last_round(const PrefillBalanceShape& shape);
  void cut_last_round(std::span<const HeadWidths> heads, const PrefillBalanceShape& shape);

  PrefillBalance plan_;
  std::vector<PrefillUnit> units_;  // those of whole rounds, then pieces of the last one's
  std::vector<std::int64_t> work_;  // of these
  std::vector<PrefillUnit> last_;   // units of the last round, not cut yet
  std::vector<std::int64_t> last_work_;
  std::vector<Key> keys_;
  WorkBalancer balancer_;
};

}  // namespace kvlane
