// Attention on codes in plain C++: the judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/hack_arithmetic.h"
#include "quant/hadamard.h"

namespace kvlane {

void load_hack_query_scalar(const HackShape& shape, const PageQuery& query, int row, float* q) {
  const int d = shape.key_dim;
  for (int i = 0; i < d; ++i) {
    float x = to_float(bf16{query.q[row][i]});
    for (int part = 1; part < query.parts; ++part) {
      x += to_float(bf16{query.q[row][part * query.part_stride + i]});
    }
    q[i] = x * query.scale;
  }
  if (shape.mix) mix_channels_scalar(q, 1, d);
}

namespace {

constexpr float kQueryMost = 127;

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  const bool both = shape.k.axis == hack::Axis::kBoth;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    load_hack_query_scalar(shape, query, row, q);
    float most = 0;
    for (int i = 0; i < d; ++i) most = std::max(most, std::abs(q[i]));
    const float scale = most / kQueryMost;
    const float inverse = most > 0 ? kQueryMost / most : 0;
    to.scale[row] = scale;
    for (int first = 0, g = 0; first < d; first += shape.key_partition(), ++g) {
      float sum = 0;
      int codes = 0;
      for (int i = first; i < std::min(first + shape.key_partition(), d); ++i) {
        const auto code = static_cast<int>(std::nearbyint(q[i] * inverse));
        to.codes[row][i] = static_cast<std::int8_t>(code);
        sum += q[i];
        codes += code;
      }
      to.sum[row][g] = sum;
      to.centre[row][g] =
          hack::middle_code(shape.k) * ((both ? 0 : sum) - scale * static_cast<float>(codes));
    }
  }
}

void attend_page(const HackShape& shape, const HackItem& item) {
  using namespace hack_arithmetic;
  const std::byte* const page = item.page;
  const HackQuery& query = *item.query;
  StateTile& tile = *item.tile;
  float scores[kTileRows][kBlockTokens];
  for (int row = 0; row < tile.rows; ++row) {
    const Query<float> of_row{query.codes[row], query.values[row], query.scale[row], query.sum[row],
                              query.centre[row]};
    const float base = base_score(shape, of_row, page);
    for (int token = 0; token < kBlockTokens; ++token) {
      scores[row][token] = score(shape, of_row, page, token, base);
    }
  }
  hide_unseen(item, scores);
  for (int row = 0; row < tile.rows; ++row) {
    const float page_max = *std::max_element(scores[row], scores[row] + kBlockTokens);
    const float max = std::max(tile.max[row], page_max);
    for (float& x : scores[row]) x = std::exp2(x - page_max);
    const auto weights = code_weights(shape, page, scores[row], std::exp2(page_max - max));
    const float keep = std::exp2(tile.max[row] - max);
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + weights.total;
    float* const out = tile.out + row * shape.value_dim;
    for (int i = 0; i < shape.value_dim; ++i) out[i] *= keep;
    add_values(shape, weights, page, out);
  }
}

void attend(const HackShape& shape, std::span<const HackItem> items) {
  for (const HackItem& item : items) attend_page(shape, item);
}

}  // namespace

HackKernel hack_kernel_scalar() { return {prepare, attend}; }

}  // namespace kvlane
