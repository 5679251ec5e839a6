// A task for each layer and KV head, rows in the order of the text.
// SPDX-License-Identifier: Apache-2.0
#include "calib/kv_grams.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "cpu/parallel.h"
#include "ops/gram.h"

namespace kvlane {
namespace {

// Adds a row in BF16 parts to `row`, or sets it.
void widen_row(const std::uint16_t* source, int d, bool first, double* row) {
  if (first) {
    for (int i = 0; i < d; ++i) row[i] = to_float(bf16{source[i]});
  } else {
    for (int i = 0; i < d; ++i) row[i] += to_float(bf16{source[i]});
  }
}

}  // namespace

KvGrams KvGrams::zero(const KvShape& shape) {
  KvGrams grams{
      .layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .sums = {}};
  for (auto& sums : grams.sums) sums.assign(grams.heads() * grams.matrix(), 0);
  return grams;
}

bool KvGrams::finite() const {
  return std::ranges::all_of(sums, [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
  });
}

PassQueries::PassQueries(const ModelConfig& config)
    : heads_(config.heads), layers_(static_cast<std::size_t>(config.layers)) {}

void PassQueries::keep(int layer, std::span<const std::uint16_t> queries, int parts) {
  parts_ = parts;
  layers_[layer].assign(queries.begin(), queries.end());
}

void PassQueries::add_pass(const BlockTable& table, int first, KvGrams& grams) const {
  const int d = grams.head_dim;
  const int group = heads_ / grams.kv_heads;
  const int tokens = table.tokens();
  parallel_for(static_cast<std::int64_t>(grams.heads()), [&](std::int64_t head) {
    const auto layer = static_cast<int>(head / grams.kv_heads);
    const auto kv_head = static_cast<int>(head % grams.kv_heads);
    const auto sum = [&](GramPart part) {
      return GramSum(static_cast<std::size_t>(d),
                     grams.sums[static_cast<int>(part)].data() + head * grams.matrix());
    };
    GramSum k = sum(GramPart::kK);
    GramSum v = sum(GramPart::kV);
    for (int token = first; token < tokens; ++token) {
      const std::uint16_t* const row =
          table.page(token / kBlockTokens, layer, kv_head) + std::size_t(token % kBlockTokens) * d;
      widen_row(row, d, true, k.next());
      widen_row(row + std::size_t(kBlockTokens) * d, d, true, v.next());
    }
    k.flush();
    v.flush();
    GramSum q = sum(GramPart::kQ);
    const std::uint16_t* const queries = layers_[layer].data();
    for (std::size_t row = 0; row < std::size_t(tokens - first); ++row) {
      for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        double* const wide = q.next();
        const std::uint16_t* const parts = queries + (row * heads_ + h) * parts_ * d;
        for (int part = 0; part < parts_; ++part) {
          widen_row(parts + std::size_t(part) * d, d, part == 0, wide);
        }
      }
    }
    q.flush();
  });
  grams.tokens += static_cast<std::uint64_t>(tokens - first);
}

}  // namespace kvlane
