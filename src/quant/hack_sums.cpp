// Sums of codes, one code at a time.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_sums.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvlane::hack {

void sum_codes_scalar(const Plane& plane, int head_dim, const std::byte* codes, std::byte* sums) {
  constexpr int kEntriesMax = kHeadDimMax / 32 * kBlockTokens;
  static_assert(kEntriesMax >= 2 * kHeadDimMax);
  std::uint16_t totals[kEntriesMax] = {};
  const bool keys = plane.axis == Axis::kToken;
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int channel = 0; channel < head_dim; ++channel) {
      const CodePlace place = keys ? key_place(plane.bits, token, channel)
                                   : value_place(plane.bits, head_dim, token, channel);
      std::uint32_t word = 0;
      std::memcpy(&word, codes + sizeof(word) * place.word, sizeof(word));
      const std::uint32_t code = word >> place.bit & ((1U << plane.bits) - 1);
      std::uint16_t& total = totals[entry_of(plane, head_dim, token, channel)];
      total = static_cast<std::uint16_t>(total + code);
    }
  }
  const int count = entries(plane, head_dim);
  if (sum_bytes(plane, head_dim) == 2) {
    std::memcpy(sums, totals, sizeof(totals[0]) * count);
  } else {
    std::transform(totals, totals + count, sums, [](std::uint16_t x) { return std::byte(x); });
  }
}

}  // namespace kvlane::hack
