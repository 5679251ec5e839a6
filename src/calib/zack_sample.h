// What ZACK's choices are measured on: K, V and queries of the beginnings of a few sequences, kept
// while the sums are taken, so that no token is computed twice.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calib/sequences.h"
#include "model/model.h"

namespace kvlane {

// One thread at a time. Memory: K, V and queries of 2,048 tokens in all layers, whatever the text.
class ZackSample {
 public:
  static constexpr std::size_t kSequences = 4;
  static constexpr std::size_t kTokens = 512;  // of each

  // The beginning of a sequence, in whole blocks. In BF16, the vectors are of a layer each.
  struct Rows {
    int tokens = 0;
    int query_parts = 1;                              // which add up to a query
    std::vector<std::vector<std::uint16_t>> k;        // [tokens][kv_heads][head_dim]
    std::vector<std::vector<std::uint16_t>> v;        // likewise
    std::vector<std::vector<std::uint16_t>> queries;  // [tokens][heads][parts][head_dim]
  };

  // For a calibration over so many tokens.
  ZackSample(const Model& model, std::size_t tokens);

  // Of the calibration's sequence `index`, in which nothing may be kept: as SequenceHooks say.
  void keep_queries(std::size_t index, int layer, std::span<const std::uint16_t> queries,
                    int parts);
  void keep_pass(std::size_t index, const BlockTable& table);

  // Computes what was not kept: sums that go on from a state have not seen it. tokens: those of the
  // calibration.
  Status complete(const Model& model, std::span<const std::int32_t> tokens);

  // Complete ones.
  std::span<const Rows> sequences() const { return sequences_; }

 private:
  bool kept(const Rows& rows) const { return !rows.k.back().empty(); }

  std::size_t query_values_;  // of a token, in one part
  std::size_t length_;        // of the calibration's sequences
  std::vector<Rows> sequences_;
};

}  // namespace kvlane
