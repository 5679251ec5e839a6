// Decode attention as tests see it: sequences in blocks of a pool with everything else poisoned,
// exact results in double precision, and how far a kernel may be from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "attention/decode_gpu.h"
#include "base/bf16.h"
#include "format/shape.h"
#include "gpu/device_code.h"

namespace kvlane::decode_fixture {

// Bytes that begin at a multiple of 16.
using Aligned = std::vector<gpu::Words4>;

struct SceneShape {
  int heads, kv_heads, head_dim;
  std::vector<std::int32_t> tokens;  // of each sequence
};

// One row of the result.
struct Row {
  std::vector<double> exact;
  std::vector<double> allowed;  // how far a result in F32 may be away from it
};

// K, V and queries of one layer. A sequence's values depend on its own tokens and `seed` alone, not
// on the other sequences of the batch.
class Scene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;
  static constexpr std::uint16_t kNan = 0x7FC0;

  explicit Scene(SceneShape shape, unsigned seed = 1) : shape_(std::move(shape)) {
    const int sequences = static_cast<int>(shape_.tokens.size());
    int blocks = 0;
    for (const int tokens : shape_.tokens) {
      stride_ = std::max(stride_, blocks_for(tokens));
      blocks += blocks_for(tokens);
    }
    // In no order, with blocks of others between them.
    std::vector<std::int32_t> ids(blocks + 2);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    stride_ += 1;
    tables_.assign(std::size_t(sequences) * stride_, -1);
    pool_.resize(ids.size() * block_bytes() / 16);
    std::fill_n(values(pool_), pool_.size() * 8, kNan);
    q_.resize(std::size_t(sequences) * shape_.heads * shape_.head_dim / 8);
    for (int sequence = 0, used = 0; sequence < sequences; ++sequence) {
      for (int i = 0; i < blocks_for(shape_.tokens[sequence]); ++i) {
        tables_[sequence * stride_ + i] = ids[used++];
      }
      fill(sequence, seed);
    }
  }

  const SceneShape& shape() const { return shape_; }
  std::size_t block_bytes() const { return kLayers * shape_.kv_heads * page_values() * 2; }
  const Aligned& pool() const { return pool_; }
  const Aligned& q() const { return q_; }
  const std::vector<std::int32_t>& tables() const { return tables_; }
  std::size_t rows() const { return shape_.tokens.size() * shape_.heads; }

  // With the scene's own addresses; outputs are the caller's.
  DecodeBatch batch() const {
    return {.tables = tables_.data(),
            .table_stride = stride_,
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .slabs = reinterpret_cast<const std::byte*>(pool_.data()) + layer_offset(),
            .block_bytes = block_bytes(),
            .q = reinterpret_cast<const std::byte*>(q_.data()),
            .scale = static_cast<float>(1.4426950408889634 / std::sqrt(shape_.head_dim))};
  }
  std::size_t layer_offset() const { return block_bytes() / kLayers * kLayer; }

  // With U = 2^-23, twice the rounding of a float (matrix units cut off instead of rounding), D =
  // head_dim, T tokens, and M the largest sum of |q k| of a token:
  //  - Products of bfloat16 are exact, and a sum of D of them is off by at most D U M; scale (which
  //    is rounded itself) and the difference from the maximum, which is at most 2 scale M, add
  //    4 U scale M. So a score is off by at most scale M (D + 4) U, in units of log2, and its
  //    weight relatively by ln 2 times that and 2 U of the power of two. The same of each factor
  //    that moves a state to another maximum, of which there is one in 16 tokens and one a merge;
  //    but the maxima cancel, so only the 2 U and U of the product are left: with P of them, 3 P U.
  //  - A weight is rounded to bfloat16 where it meets V: 2^-8.
  //  - Sums over tokens, of outputs and of weights, add T U each.
  // Errors of weights come once in the output and once in the sum (but not the 2^-8). A result is
  // off by at most that share of the sum of |weight V|. What is below 2^-126 may be lost: 1e-30.
  Row exact(int sequence, int head) const {
    const int dim = shape_.head_dim, tokens = shape_.tokens[sequence];
    const int kv_head = head / (shape_.heads / shape_.kv_heads);
    const std::uint16_t* q = values(q_) + (std::size_t(sequence) * shape_.heads + head) * dim;
    std::vector<double> score(tokens);
    double products_max = 0;
    for (int t = 0; t < tokens; ++t) {
      double products = 0;
      for (int i = 0; i < dim; ++i) {
        const double product = value(q[i]) * value(k(sequence, t, kv_head)[i]);
        score[t] += product;
        products += std::abs(product);
      }
      products_max = std::max(products_max, products);
    }
    Row row{std::vector<double>(dim), std::vector<double>(dim)};
    if (tokens == 0) return row;
    const double scale = 1.4426950408889634 / std::sqrt(dim);
    const double max = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (double& s : score) sum += s = std::exp2((s - max) * scale);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < dim; ++i) {
        const double term = score[t] / sum * value(v(sequence, t, kv_head)[i]);
        row.exact[i] += term;
        row.allowed[i] += std::abs(term);
      }
    }
    constexpr double kU = 0x1p-23;
    const double moves = tokens / 16 + 100;
    const double weight =
        std::numbers::ln2 * scale * products_max * (dim + 4) * kU + 2 * kU + 3 * moves * kU;
    const double share = 0x1p-8 + 2 * (weight + tokens * kU) + 2 * kU;
    for (double& allowed : row.allowed) allowed = 1.01 * share * allowed + 1e-30;
    return row;
  }

  void scale_key(int sequence, int token, int kv_head, float by) {
    auto* const key = const_cast<std::uint16_t*>(k(sequence, token, kv_head));
    for (int i = 0; i < shape_.head_dim; ++i) {
      key[i] = to_bf16(by * to_float(bf16{key[i]})).bits;
    }
  }

  // `result` is [sequences][heads][head_dim].
  void expect_right(const std::vector<float>& result) const {
    for (std::size_t at = 0; at < rows(); ++at) {
      const int sequence = static_cast<int>(at) / shape_.heads;
      const int head = static_cast<int>(at) % shape_.heads;
      const Row row = exact(sequence, head);
      for (int i = 0; i < shape_.head_dim; ++i) {
        ASSERT_NEAR(result[at * shape_.head_dim + i], row.exact[i], row.allowed[i])
            << "sequence " << sequence << " of " << shape_.tokens[sequence] << " tokens, head "
            << head << " of " << shape_.heads << ", channel " << i << " of " << shape_.head_dim;
      }
    }
  }

 private:
  static double value(std::uint16_t bits) { return to_float(bf16{bits}); }
  static std::uint16_t* values(Aligned& bytes) {
    return reinterpret_cast<std::uint16_t*>(bytes.data());
  }
  static const std::uint16_t* values(const Aligned& bytes) {
    return reinterpret_cast<const std::uint16_t*>(bytes.data());
  }
  std::size_t page_values() const { return 2 * std::size_t{kBlockTokens} * shape_.head_dim; }

  // Standard normal values; queries four times as large, so that some tokens weigh more than
  // others.
  void fill(int sequence, unsigned seed) {
    const auto tokens = static_cast<unsigned>(shape_.tokens[sequence]);
    std::mt19937 random(seed * 7919 + tokens);
    std::normal_distribution<float> normal;
    const std::size_t row = std::size_t(shape_.heads) * shape_.head_dim;
    for (std::size_t i = 0; i < row; ++i) {
      values(q_)[sequence * row + i] = to_bf16(4 * normal(random)).bits;
    }
    for (int token = 0; token < shape_.tokens[sequence]; ++token) {
      for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
        auto* const key = const_cast<std::uint16_t*>(k(sequence, token, kv_head));
        for (int i = 0; i < shape_.head_dim; ++i) {
          key[i] = to_bf16(normal(random)).bits;
          key[page_values() / 2 + i] = to_bf16(normal(random)).bits;
        }
      }
    }
  }
  const std::uint16_t* k(int sequence, int token, int kv_head) const {
    const std::int32_t id = tables_[sequence * stride_ + token / kBlockTokens];
    return values(pool_) + (id * block_bytes() + layer_offset()) / 2 + kv_head * page_values() +
           std::size_t(token % kBlockTokens) * shape_.head_dim;
  }
  const std::uint16_t* v(int sequence, int token, int kv_head) const {
    return k(sequence, token, kv_head) + page_values() / 2;
  }

  const SceneShape shape_;
  std::int32_t stride_ = 0;
  std::vector<std::int32_t> tables_;
  Aligned pool_, q_;
};

}  // namespace kvlane::decode_fixture
