// Cuts spans into units for prefill attention.
// SPDX-License-Identifier: Apache-2.0
#include "plan/prefill_units.h"

#include <algorithm>

#include "format/shape.h"

namespace kvlane {

std::vector<PrefillUnit> plan_prefill(std::span<const PrefillSpan> spans,
                                      const PrefillShape& shape) {
  const int group = shape.heads / shape.kv_heads;
  std::vector<PrefillUnit> units;
  for (int sequence = 0; sequence < static_cast<int>(spans.size()); ++sequence) {
    const PrefillSpan& span = spans[sequence];
    const int end = span.rows * group;
    for (int pair = 0; pair < end; pair += std::min(shape.pairs, end - pair)) {
      for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        units.push_back({sequence, kv_head, pair, std::min(shape.pairs, end - pair), span.position,
                         span.first_row});
      }
    }
  }
  // Long ones first, so that none starts when all others are done. What lasts is pages.
  std::stable_sort(units.begin(), units.end(), [&](const PrefillUnit& a, const PrefillUnit& b) {
    return blocks_for(prefill_tokens(a, group)) > blocks_for(prefill_tokens(b, group));
  });
  return units;
}

}  // namespace kvlane
