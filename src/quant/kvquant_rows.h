// What becomes of rows before KVQuant codes them: for the format and for its calibration.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/shape.h"
#include "ops/rope_table.h"

namespace kvlane::kvquant {

// How many of `count` values count as outliers at one end, for `percent` at both: the public code's
// 21 of 4096.
constexpr int outliers_at_end(std::int64_t count, int percent) {
  return static_cast<int>((count * percent + 199) / 200);
}

// The inverse of rope() (ops/rows.h), in place.
void undo_rope(float* head, RopeAngles angles, int head_dim);

// K is cut to this after it was rotated back, so that no difference of two values overflows.
inline constexpr float kKeyMax = 0x1p126F;

// The first channel of each head's K or V, and behind them their number: [kv_heads + 1]. A head has
// the first values of its rows, or all.
using FirstChannels = std::vector<int>;
FirstChannels all_channels(const KvShape& shape);

// One token's row over all heads in F32, [channels.back()]; K as it was before it was rotated by
// `angles`, which takes whole heads, or as it is where these are null. Finite.
void read_token(const KvShape& shape, std::span<const int> channels, const std::uint16_t* rows,
                bool is_key, int token, RopeAngles angles, float* row);

// What lies between is coded, what lies outside is an outlier. Normalised values are
// (x - middle()) * per_value().
struct Limits {
  float low = 0;
  float high = 0;

  float middle() const { return low * 0.5F + high * 0.5F; }
  float reach() const { return high * 0.5F - low * 0.5F; }
  // 0 where low and high are so close that everything between is their middle.
  float per_value() const { return reach() >= 0x1p-100F ? 1.0F / reach() : 0.0F; }
};

// Limits of one token's V, which leave `at_end` values out at either end, and which values these
// are: outside[0 ... at_end) the largest, then as many of the smallest, by channel; among equals
// those of lower channels. order: scratch, [row.size()]; 2 * at_end < row.size().
Limits token_limits(std::span<const float> row, int at_end, std::span<std::uint32_t> order);

}  // namespace kvlane::kvquant
