// Gram matrices of a model's K, Q and V over a text, for each layer and KV head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "model/config.h"

namespace kvlane {

// kQ: the query heads of all that read one KV head, together.
enum class GramPart { kK, kQ, kV };
inline constexpr int kGramParts = 3;

// [layers][kv_heads] matrices [head_dim][head_dim] of each part (ops/gram.h says which entries
// count). Memory: 24 bytes for each of these entries, whatever the text.
struct KvGrams {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::uint64_t tokens = 0;  // whose rows are in the sums
  std::array<std::vector<double>, kGramParts> sums;

  static KvGrams zero(const KvShape& shape);

  std::size_t heads() const { return std::size_t(layers) * kv_heads; }
  std::size_t matrix() const { return std::size_t(head_dim) * head_dim; }
  // head: layer * kv_heads + KV head.
  std::span<const double> of(GramPart part, std::size_t head) const {
    return std::span(sums[static_cast<int>(part)]).subspan(head * matrix(), matrix());
  }
  // No value that went into the sums was infinite or not a number.
  bool finite() const;
};

// The queries of one pass, kept from the layers' hooks until the pass is complete: then all layers
// and heads can be summed side by side. Memory: the queries of 256 tokens.
class PassQueries {
 public:
  explicit PassQueries(const ModelConfig& config);

  // As PassHooks::OnQueries.
  void keep(int layer, std::span<const std::uint16_t> queries, int parts);

  // Adds the rows of a pass: K and V of the tokens from `first` up to table.tokens(), and the
  // queries kept, which are as many. The sums do not depend on the number of threads.
  void add_pass(const BlockTable& table, int first, KvGrams& grams) const;

 private:
  int heads_;
  int parts_ = 1;
  std::vector<std::vector<std::uint16_t>> layers_;  // [rows][heads][parts][head_dim] each
};

}  // namespace kvlane
