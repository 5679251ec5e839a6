// Attention in floats on pages of codes in plain C++: the judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/hack_float_arithmetic.h"

namespace kvlane {
namespace {

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  for (int row = 0; row < rows; ++row) {
    load_hack_query_scalar(shape, query, row, to.values[row]);
    for (int first = 0, g = 0; first < d; first += shape.key_partition(), ++g) {
      float sum = 0;
      const int end = std::min(first + shape.key_partition(), d);
      for (int i = first; i < end; ++i) sum += to.values[row][i];
      to.sum[row][g] = sum;
    }
  }
}

template <HackOperand kOperand>
void attend_page(const HackShape& shape, const HackItem& item) {
  using namespace hack_arithmetic;
  constexpr bool kCodes = kOperand == HackOperand::kCodes;
  const std::byte* const page = item.page;
  StateTile& tile = *item.tile;
  float scores[kTileRows][kBlockTokens];
  for (int row = 0; row < tile.rows; ++row) {
    const float* const q = item.query->values[row];
    for (int token = 0; token < kBlockTokens; ++token) {
      scores[row][token] = kCodes ? score_on_codes(shape, q, item.query->sum[row], page, token)
                                  : score_on_values(shape, q, page, token);
    }
  }
  hide_unseen(item, scores);
  for (int row = 0; row < tile.rows; ++row) {
    float* const weights = scores[row];
    const float max = std::max(tile.max[row], *std::max_element(weights, weights + kBlockTokens));
    float sum = 0;
    for (float& x : scores[row]) sum += x = std::exp2(x - max);
    const float keep = std::exp2(tile.max[row] - max);
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + sum;
    float* const out = tile.out + row * shape.value_dim;
    for (int i = 0; i < shape.value_dim; ++i) out[i] *= keep;
    kCodes ? add_on_codes(shape, weights, page, out) : add_on_values(shape, weights, page, out);
  }
}

template <HackOperand kOperand>
void attend(const HackShape& shape, std::span<const HackItem> items) {
  for (const HackItem& item : items) attend_page<kOperand>(shape, item);
}

}  // namespace

HackKernel hack_float_kernel_scalar(HackOperand operand) {
  return {prepare, operand == HackOperand::kCodes ? attend<HackOperand::kCodes>
                                                  : attend<HackOperand::kValues>};
}

}  // namespace kvlane
