// Attention on codes in the complete form of HACK's paper in plain C++: the judge of the fast
// kernel.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/hack_complete_arithmetic.h"

namespace kvlane {
namespace {

using hack_arithmetic::CodedPartition;

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.key_dim;
  for (int row = 0; row < rows; ++row) {
    load_hack_query_scalar(shape, query, row, to.values[row]);
    for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
      const auto count = static_cast<std::size_t>(std::min(shape.k.partition, d - first));
      const auto coded = hack_arithmetic::code_partition<float>({to.values[row] + first, count},
                                                                to.codes[row] + first);
      to.origin[row][g] = coded.origin;
      to.unit[row][g] = coded.unit;
      to.sum[row][g] = coded.sum;
    }
  }
}

// Those of the slab, or taken into `room`.
const std::byte* sums_of(const hack::Plane& plane, int head_dim, const std::byte* codes,
                         const std::byte* page, std::size_t stored, std::byte* room) {
  if (stored != 0) return page + stored;
  hack::sum_codes_scalar(plane, head_dim, codes, room);
  return room;
}

void add_row(const HackShape& shape, const HackItem& item, int row, const std::byte* sums,
             float* scores) {
  StateTile& tile = *item.tile;
  const float max = std::max(tile.max[row], *std::max_element(scores, scores + kBlockTokens));
  float sum = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    scores[token] = std::exp2(scores[token] - max);
    sum += scores[token];
  }
  const float keep = std::exp2(tile.max[row] - max);
  tile.max[row] = max;
  tile.sum[row] = tile.sum[row] * keep + sum;
  std::int8_t codes[kBlockTokens];
  CodedPartition<float> weights[2];
  for (int first = 0, g = 0; first < kBlockTokens; first += shape.v.partition, ++g) {
    const auto count = static_cast<std::size_t>(shape.v.partition);
    weights[g] = hack_arithmetic::code_partition<float>({scores + first, count}, codes + first);
  }
  float* const out = tile.out + row * shape.value_dim;
  for (int i = 0; i < shape.value_dim; ++i) out[i] *= keep;
  hack_arithmetic::add_complete(shape, codes, weights, item.page, sums, out);
}

void attend_page(const HackShape& shape, const HackItem& item) {
  const hack::PageLayout& layout = shape.layout;
  const int d = shape.key_dim;
  std::byte k_room[kHackSumsBytesMax];
  std::byte v_room[kHackSumsBytesMax];
  const std::byte* const k_sums = sums_of(shape.k, d, item.page, item.page, layout.k_sums, k_room);
  const std::byte* const v_sums = sums_of(shape.v, shape.value_dim, item.page + layout.v_codes,
                                          item.page, layout.v_sums, v_room);
  const HackQuery& query = *item.query;
  float scores[kTileRows][kBlockTokens];
  for (int row = 0; row < item.tile->rows; ++row) {
    CodedPartition<float> of_row[kHackPartitionsMax];
    for (int g = 0; g * shape.k.partition < d; ++g) {
      of_row[g] = {query.origin[row][g], query.unit[row][g], query.sum[row][g]};
    }
    for (int token = 0; token < kBlockTokens; ++token) {
      scores[row][token] = hack_arithmetic::score_complete(shape, query.codes[row], of_row,
                                                           item.page, k_sums, token);
    }
  }
  hide_unseen(item, scores);
  for (int row = 0; row < item.tile->rows; ++row) add_row(shape, item, row, v_sums, scores[row]);
}

void attend(const HackShape& shape, std::span<const HackItem> items) {
  for (const HackItem& item : items) attend_page(shape, item);
}

}  // namespace

HackKernel hack_complete_kernel_scalar() { return {prepare, attend}; }

}  // namespace kvlane
