// Causal attention: the beginning of a sequence is the same whatever follows it.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_sample.h"

#include <algorithm>

namespace kvlane {
namespace {

// [tokens][kv_heads][head_dim] of a layer.
std::vector<std::uint16_t> rows_of(const BlockTable& table, int layer, bool is_key, int tokens) {
  const KvShape& shape = table.pool().shape();
  const auto d = static_cast<std::size_t>(shape.head_dim);
  std::vector<std::uint16_t> rows;
  rows.reserve(std::size_t(tokens) * shape.kv_heads * d);
  for (int token = 0; token < tokens; ++token) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::uint16_t* const row =
          table.page(token / kBlockTokens, layer, head) +
          ((is_key ? 0 : kBlockTokens) + std::size_t(token % kBlockTokens)) * d;
      rows.insert(rows.end(), row, row + d);
    }
  }
  return rows;
}

}  // namespace

ZackSample::ZackSample(const Model& model, std::size_t tokens)
    : query_values_(std::size_t(model.config().heads) * model.config().head_dim),
      length_(static_cast<std::size_t>(calibration_sequence(model))) {
  const auto layers = static_cast<std::size_t>(model.config().layers);
  for (std::size_t start = 0; start < tokens && sequences_.size() < kSequences; start += length_) {
    const std::size_t blocks = std::min({tokens - start, length_, kTokens}) / kBlockTokens;
    if (blocks == 0) break;
    Rows rows;
    rows.tokens = static_cast<int>(blocks) * kBlockTokens;
    for (auto* plane : {&rows.k, &rows.v, &rows.queries}) plane->resize(layers);
    sequences_.push_back(std::move(rows));
  }
}

void ZackSample::keep_queries(std::size_t index, int layer, std::span<const std::uint16_t> queries,
                              int parts) {
  if (index >= sequences_.size()) return;
  Rows& rows = sequences_[index];
  rows.query_parts = parts;
  std::vector<std::uint16_t>& to = rows.queries[layer];
  const std::size_t wanted = rows.tokens * query_values_ * parts - to.size();
  const auto part = queries.first(std::min(wanted, queries.size()));
  to.insert(to.end(), part.begin(), part.end());
}

void ZackSample::keep_pass(std::size_t index, const BlockTable& table) {
  if (index >= sequences_.size()) return;
  Rows& rows = sequences_[index];
  if (kept(rows) || table.tokens() < rows.tokens) return;
  for (std::size_t layer = 0; layer < rows.k.size(); ++layer) {
    rows.k[layer] = rows_of(table, static_cast<int>(layer), true, rows.tokens);
    rows.v[layer] = rows_of(table, static_cast<int>(layer), false, rows.tokens);
  }
}

Status ZackSample::complete(const Model& model, std::span<const std::int32_t> tokens) {
  for (std::size_t index = 0; index < sequences_.size(); ++index) {
    if (kept(sequences_[index])) continue;
    const SequenceHooks hooks{
        .on_input = {},
        .on_queries = [&](int layer, std::span<const std::uint16_t> queries,
                          int parts) { keep_queries(index, layer, queries, parts); },
        .on_pass = [&](const BlockTable& table, int) { keep_pass(index, table); }};
    const auto beginning =
        tokens.subspan(index * length_, static_cast<std::size_t>(sequences_[index].tokens));
    KVLANE_TRY(run_sequences(
        model, beginning, [](const BlockTable&) {}, {}, hooks));
  }
  return {};
}

}  // namespace kvlane
