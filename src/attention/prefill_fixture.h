// Prefill attention as tests see it: spans of sequences in blocks of a pool with everything else
// poisoned, exact results in double precision, and how far a kernel may be from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "attention/prefill_gpu.h"
#include "base/bf16.h"
#include "format/shape.h"
#include "gpu/device_code.h"

namespace kvlane::prefill_fixture {

// Bytes that begin at a multiple of 16.
using Aligned = std::vector<gpu::Words4>;

// Rows [position, position + rows) of a sequence. Spans of one sequence see the same K, V and
// queries.
struct SpanShape {
  int sequence;
  int position;
  int rows;
};

struct SceneShape {
  int heads, kv_heads, head_dim;
  std::vector<SpanShape> spans;
  // Of a coded cache: rows see what it names, and states of something else before.
  std::optional<KvWindow> window = {};
};

// One row of one head.
struct Row {
  std::vector<double> exact;
  std::vector<double> allowed;  // how far the result, rounded to bfloat16, may be away from it
};

// K, V and queries of one layer. What belongs to a token depends on its sequence, its position and
// `seed` alone. Each span has blocks of its own, with NaN in all rows behind its last one; between
// spans `q` has rows that none has, of NaN.
class Scene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;
  static constexpr std::uint16_t kNan = 0x7FC0;

  explicit Scene(SceneShape shape, unsigned seed = 1) : shape_(std::move(shape)), seed_(seed) {
    int blocks = 0;
    for (const SpanShape& span : shape_.spans) {
      spans_.push_back({span.position, span.rows, rows_});
      rows_ += span.rows + 1;
      stride_ = std::max(stride_, blocks_for(span.position + span.rows));
      blocks += blocks_for(span.position + span.rows);
    }
    // In no order, with blocks of others between them.
    std::vector<std::int32_t> ids(blocks + 2);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    stride_ += 1;
    tables_.assign(spans_.size() * stride_, -1);
    pool_.resize(ids.size() * block_bytes() / 16);
    std::fill_n(values(pool_), pool_.size() * 8, kNan);
    q_.resize(std::size_t(rows_) * shape_.heads * shape_.head_dim / 8);
    std::fill_n(values(q_), q_.size() * 8, kNan);
    int used = 0;
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const int tokens = spans_[i].position + spans_[i].rows;
      for (int block = 0; block < blocks_for(tokens); ++block) {
        if (sees_block(i, block)) tables_[i * stride_ + block] = ids[used++];
      }
      for (int token = 0; token < tokens; ++token) fill(i, token);
    }
    fill_states();
  }

  const SceneShape& shape() const { return shape_; }
  const std::vector<PrefillSpan>& spans() const { return spans_; }
  int rows() const { return rows_; }
  std::size_t row_values() const { return std::size_t(shape_.heads) * shape_.head_dim; }
  const Aligned& pool() const { return pool_; }
  const Aligned& q() const { return q_; }
  const std::vector<std::int32_t>& tables() const { return tables_; }
  std::size_t layer_offset() const { return block_bytes() / kLayers * kLayer; }

  // With the scene's own addresses; the output is the caller's.
  PrefillBatch batch() const {
    return {.tables = tables_.data(),
            .table_stride = stride_,
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .slabs = reinterpret_cast<const std::byte*>(pool_.data()) + layer_offset(),
            .block_bytes = block_bytes(),
            .q = reinterpret_cast<const std::byte*>(q_.data()),
            .scale = static_cast<float>(1.4426950408889634 / std::sqrt(shape_.head_dim)),
            .out = nullptr};
  }
  std::vector<PrefillUnit> units() const {
    return plan_prefill(spans_, *prefill_shape(shape_.heads, shape_.kv_heads, shape_.head_dim));
  }

  // Of a coded cache.
  SealedSeen seen() const { return {*shape_.window, max_.data(), sum_.data(), floats(out_)}; }
  const std::vector<float>& seen_max() const { return max_; }
  const std::vector<float>& seen_sum() const { return sum_; }
  const Aligned& seen_out() const { return out_; }

  // With U = 2^-23, twice the rounding of a float (matrix units cut off instead of rounding), D =
  // head_dim, T tokens, and M the largest sum of |q k| of a token:
  //  - Products of bfloat16 are exact, and a sum of D of them is off by at most D U M; scale (which
  //    is rounded itself) and the difference from the maximum, which is at most 2 scale M, add
  //    4 U scale M. So a score is off by at most scale M (D + 4) U, in units of log2, and its
  //    weight relatively by ln 2 times that and 2 U of the power of two. The same of each factor
  //    that moves a row to another maximum, of which there is one a page; but the maxima cancel, so
  //    only the 2 U and U of the product are left: with P of them, 3 P U.
  //  - A weight is rounded to bfloat16, 2^-9 (and 2^-18 of the second order below), for the output
  //    and for the sum alike.
  //  - Sums over tokens, of outputs and of weights, add T U each; the reciprocal and its product U.
  // All of these come once in the output and once in the sum, so a result is off by at most twice
  // their share of the sum of |weight V|, and its own rounding to bfloat16 adds 2^-9 of it. What is
  // below 2^-126 may be lost: 1e-30. The state of a coded cache is exact, and counts as a token.
  Row exact(std::size_t span, int row, int head) const {
    const int dim = shape_.head_dim, tokens = spans_[span].position + row + 1;
    const int kv_head = head / (shape_.heads / shape_.kv_heads);
    const std::uint16_t* query =
        values(q_) + (spans_[span].first_row + row) * row_values() + std::size_t(head) * dim;
    std::vector<double> score(tokens);
    double products_max = 0;
    for (int t = 0; t < tokens; ++t) {
      if (!sees(span, row, t)) {
        score[t] = -std::numeric_limits<double>::infinity();
        continue;
      }
      const std::uint16_t* key = k(span, t, kv_head);
      double products = 0;
      for (int i = 0; i < dim; ++i) {
        const double product = value(query[i]) * value(key[i]);
        score[t] += product;
        products += std::abs(product);
      }
      products_max = std::max(products_max, products);
    }
    const double scale = 1.4426950408889634 / std::sqrt(dim);
    double max = scale * *std::max_element(score.begin(), score.end());
    const std::size_t state = std::size_t(spans_[span].first_row + row) * shape_.heads + head;
    if (shape_.window) max = std::max(max, double{max_[state]});
    double sum = 0;
    for (double& s : score) sum += s = std::exp2(s * scale - max);
    Row result{std::vector<double>(dim), std::vector<double>(dim)};
    const double before = shape_.window ? std::exp2(max_[state] - max) : 0;
    if (shape_.window) sum += before * sum_[state];
    for (int i = 0; i < dim && shape_.window; ++i) {
      const double term = before * floats(out_)[state * dim + i] / sum;
      result.exact[i] += term;
      result.allowed[i] += std::abs(term);
    }
    for (int t = 0; t < tokens; ++t) {
      if (!sees(span, row, t)) continue;
      const std::uint16_t* v = k(span, t, kv_head) + page_values() / 2;
      for (int i = 0; i < dim; ++i) {
        const double term = score[t] / sum * value(v[i]);
        result.exact[i] += term;
        result.allowed[i] += std::abs(term);
      }
    }
    constexpr double kU = 0x1p-23;
    const double moves = blocks_for(tokens);
    const double weight =
        std::numbers::ln2 * scale * products_max * (dim + 4) * kU + 2 * kU + 3 * moves * kU;
    const double share = 2 * (0x1p-9 + weight + (tokens + 1) * kU) + 2 * kU;
    for (int i = 0; i < dim; ++i) {
      result.allowed[i] = 1.01 * (share * result.allowed[i] + 0x1p-9 * std::abs(result.exact[i]));
      result.allowed[i] += 1e-30;
    }
    return result;
  }

  void scale_key(std::size_t span, int token, int kv_head, float by) {
    auto* const key = const_cast<std::uint16_t*>(k(span, token, kv_head));
    for (int i = 0; i < shape_.head_dim; ++i) {
      key[i] = to_bf16(by * to_float(bf16{key[i]})).bits;
    }
  }

  void set_value(std::size_t span, int token, int kv_head, float to) {
    auto* const value = const_cast<std::uint16_t*>(k(span, token, kv_head)) + page_values() / 2;
    std::fill_n(value, shape_.head_dim, to_bf16(to).bits);
  }

  // `out` is [rows()][heads][head_dim], where all of it was `poison` before. Every `step`-th row of
  // a span is compared, and its last one.
  void expect_right(const std::vector<std::uint16_t>& out, std::uint16_t poison,
                    int step = 1) const {
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const PrefillSpan& span = spans_[i];
      for (int row = 0; row < span.rows; row += std::clamp(span.rows - 1 - row, 1, step)) {
        for (int head = 0; head < shape_.heads; ++head) expect_row(out, i, row, head);
        if (testing::Test::HasFatalFailure()) return;
      }
      const auto behind =
          out.begin() + static_cast<std::ptrdiff_t>((span.first_row + span.rows) * row_values());
      ASSERT_TRUE(std::all_of(behind, behind + static_cast<std::ptrdiff_t>(row_values()),
                              [&](std::uint16_t bits) { return bits == poison; }))
          << "written behind the last row of span " << i;
    }
  }

  // Bits of one span's rows in `out`.
  std::vector<std::uint16_t> rows_of(const std::vector<std::uint16_t>& out,
                                     std::size_t span) const {
    const auto at = [&](int row) {
      return out.begin() + static_cast<std::ptrdiff_t>(std::size_t(row) * row_values());
    };
    const PrefillSpan& one = spans_[span];
    return {at(one.first_row), at(one.first_row + one.rows)};
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
  std::size_t block_bytes() const { return kLayers * shape_.kv_heads * page_values() * 2; }

  void expect_row(const std::vector<std::uint16_t>& out, std::size_t span, int row,
                  int head) const {
    const Row right = exact(span, row, head);
    const std::size_t at =
        (spans_[span].first_row + row) * row_values() + std::size_t(head) * shape_.head_dim;
    for (int i = 0; i < shape_.head_dim; ++i) {
      ASSERT_NEAR(value(out[at + i]), right.exact[i], right.allowed[i])
          << "span " << span << ", row " << row << " of " << spans_[span].rows << " from "
          << spans_[span].position << ", head " << head << " of " << shape_.heads << ", channel "
          << i << " of " << shape_.head_dim;
    }
  }

  // Whether any row of the span does.
  bool sees_block(std::size_t span, int block) const {
    if (!shape_.window) return true;
    return shape_.window->reads_rows(block, spans_[span].position / kBlockTokens);
  }
  bool sees(std::size_t span, int row, int token) const {
    if (!shape_.window) return true;
    const int own = (spans_[span].position + row) / kBlockTokens;
    return shape_.window->reads_rows(token / kBlockTokens, own);
  }
  static const float* floats(const Aligned& bytes) {
    return reinterpret_cast<const float*>(bytes.data());
  }
  // Of a few tokens each, of none where there are no blocks for them.
  void fill_states() {
    if (!shape_.window) return;
    const std::size_t states = std::size_t(rows_) * shape_.heads;
    max_.assign(states, std::numeric_limits<float>::quiet_NaN());
    sum_ = max_;
    out_.assign(states * shape_.head_dim / 4, {{~0U, ~0U, ~0U, ~0U}});
    auto* const out = reinterpret_cast<float*>(out_.data());
    std::mt19937 random(seed_);
    std::normal_distribution<float> normal;
    for (const PrefillSpan& span : spans_) {
      for (int i = 0; i < span.rows * shape_.heads; ++i) {
        const std::size_t at = std::size_t(span.first_row) * shape_.heads + i;
        const int own = (span.position + i / shape_.heads) / kBlockTokens;
        const bool some = own - shape_.window->recent > shape_.window->sink;
        max_[at] = some ? 4 * normal(random) : -std::numeric_limits<float>::infinity();
        sum_[at] = some ? 1 + std::abs(normal(random)) : 0;
        for (int j = 0; j < shape_.head_dim; ++j) {
          out[at * shape_.head_dim + j] = some ? normal(random) : 0;
        }
      }
    }
  }

  // Standard normal values; queries four times as large, so that some tokens weigh more than
  // others.
  void fill(std::size_t span, int token) {
    const bool there = sees_block(span, token / kBlockTokens);
    std::mt19937 random(seed_ * 7919 + shape_.spans[span].sequence * 104729 + token);
    std::normal_distribution<float> normal;
    for (int kv_head = 0; there && kv_head < shape_.kv_heads; ++kv_head) {
      auto* const key = const_cast<std::uint16_t*>(k(span, token, kv_head));
      for (int i = 0; i < shape_.head_dim; ++i) {
        key[i] = to_bf16(normal(random)).bits;
        key[page_values() / 2 + i] = to_bf16(normal(random)).bits;
      }
    }
    const int row = token - spans_[span].position;
    if (row < 0) return;
    std::uint16_t* const query = values(q_) + (spans_[span].first_row + row) * row_values();
    for (std::size_t i = 0; i < row_values(); ++i) query[i] = to_bf16(4 * normal(random)).bits;
  }
  const std::uint16_t* k(std::size_t span, int token, int kv_head) const {
    const std::int32_t id = tables_[span * stride_ + token / kBlockTokens];
    return values(pool_) + (id * block_bytes() + layer_offset()) / 2 + kv_head * page_values() +
           std::size_t(token % kBlockTokens) * shape_.head_dim;
  }

  const SceneShape shape_;
  const unsigned seed_;
  std::vector<PrefillSpan> spans_;
  int rows_ = 0;
  std::int32_t stride_ = 0;
  std::vector<std::int32_t> tables_;
  Aligned pool_, q_;
  std::vector<float> max_, sum_;  // states of a coded cache
  Aligned out_;
};

}  // namespace kvlane::prefill_fixture
