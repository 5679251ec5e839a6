// Rotating back, and order statistics of a token.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kvquant_rows.h"

#include <algorithm>
#include <numeric>

#include "base/bf16.h"
#include "quant/slab_rows.h"

namespace kvlane::kvquant {

void undo_rope(float* head, RopeAngles angles, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float low = head[i];
    const float high = head[i + half];
    head[i] = low * angles.cos[i] + high * angles.sin[i];
    head[i + half] = high * angles.cos[i] - low * angles.sin[i];
  }
}

FirstChannels all_channels(const KvShape& shape) {
  FirstChannels first;
  for (int head = 0; head <= shape.kv_heads; ++head) first.push_back(head * shape.head_dim);
  return first;
}

void read_token(const KvShape& shape, std::span<const int> channels, const std::uint16_t* rows,
                bool is_key, int token, RopeAngles angles, float* row) {
  for (int head = 0; head < shape.kv_heads; ++head) {
    const std::uint16_t* const from = slab_row(shape, rows, head, is_key, token);
    const int width = channels[head + 1] - channels[head];
    for (int i = 0; i < width; ++i) row[i] = to_float(bf16{from[i]});
    if (is_key) {
      if (angles.cos != nullptr) undo_rope(row, angles, shape.head_dim);
      for (int i = 0; i < width; ++i) row[i] = std::clamp(row[i], -kKeyMax, kKeyMax);
    }
    row += width;
  }
}

Limits token_limits(std::span<const float> row, int at_end, std::span<std::uint32_t> order) {
  std::iota(order.begin(), order.end(), 0U);
  const auto larger = [&](std::uint32_t a, std::uint32_t b) {
    return row[a] != row[b] ? row[a] > row[b] : a < b;
  };
  const auto smaller = [&](std::uint32_t a, std::uint32_t b) {
    return row[a] != row[b] ? row[a] < row[b] : a < b;
  };
  // The largest to the front, and of the rest the smallest behind them.
  std::nth_element(order.begin(), order.begin() + at_end, order.end(), larger);
  const float high = row[order[at_end]];
  const auto rest = order.begin() + at_end;
  std::nth_element(rest, rest + at_end, order.end(), smaller);
  return {row[order[2 * std::size_t(at_end)]], high};
}

}  // namespace kvlane::kvquant
