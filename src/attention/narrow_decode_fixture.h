// Decode attention over narrow pages as tests see it: sequences of sealed blocks in a pool with
// everything else poisoned, exact results in double precision, and how far a kernel may be from
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "attention/narrow_decode_gpu.h"
#include "base/bf16.h"

namespace kvlane::narrow_fixture {

// Bytes that begin at a multiple of 16.
using Aligned = std::vector<gpu::Words4>;

struct SceneShape {
  int group;  // query heads a KV head
  std::vector<HeadWidths> widths;
  int head_dim;
  std::vector<std::int32_t> blocks;  // of each sequence
  float size = 4;                    // of queries: how much some tokens weigh more than others

  int kv_heads() const { return static_cast<int>(widths.size()); }
  int heads() const { return group * kv_heads(); }
};

// One row of the result.
struct Row {
  std::vector<double> exact;
  std::vector<double> allowed;  // how far a result in F32 may be away from it
};

// K, V and queries of one layer. A sequence's values depend on its own length and `seed` alone, not
// on the other sequences of the batch.
class Scene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;
  static constexpr std::uint16_t kNan = 0x7FC0;

  explicit Scene(SceneShape shape, unsigned seed = 1) : shape_(std::move(shape)) {
    const int sequences = static_cast<int>(shape_.blocks.size());
    const int blocks = std::accumulate(shape_.blocks.begin(), shape_.blocks.end(), 0);
    for (const int count : shape_.blocks) stride_ = std::max(stride_, count);
    // In no order, with blocks of others between them.
    std::vector<std::int32_t> ids(blocks + 2);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    stride_ += 1;
    tables_.assign(std::size_t(sequences) * stride_, -1);
    pool_.resize(ids.size() * block_bytes() / 16);
    std::fill_n(values(pool_), pool_.size() * 8, kNan);
    q_.resize(rows() * shape_.head_dim / 8);
    std::int32_t states = 0;
    for (int sequence = 0, used = 0; sequence < sequences; ++sequence) {
      for (int i = 0; i < shape_.blocks[sequence]; ++i) {
        tables_[sequence * stride_ + i] = ids[used++];
      }
      spans_.push_back({0, shape_.blocks[sequence], states});
      first_state_.push_back(states);
      states += spans_.back().runs() * shape_.heads();
      fill(sequence, seed);
    }
    first_state_.push_back(states);
  }

  const SceneShape& shape() const { return shape_; }
  std::size_t slab_bytes() const { return page_offset(shape_.kv_heads()); }
  std::size_t block_bytes() const { return kLayers * slab_bytes(); }
  std::size_t layer_offset() const { return slab_bytes() * kLayer; }
  const Aligned& pool() const { return pool_; }
  const Aligned& q() const { return q_; }
  const std::vector<std::int32_t>& tables() const { return tables_; }
  const std::vector<NarrowSpan>& spans() const { return spans_; }
  // As DecodeMerge has it.
  const std::vector<std::int32_t>& first_state() const { return first_state_; }
  std::size_t rows() const { return shape_.blocks.size() * shape_.heads(); }
  int width_max() const { return narrow_width_max(shape_.widths); }

  NarrowDecodePlan plan(int machines, bool longest_first = true) const {
    return NarrowDecodePlanner().plan(spans_, shape_.widths,
                                      {shape_.heads(), machines, longest_first});
  }
  // With the scene's own addresses; pieces and outputs are the caller's.
  NarrowDecodeBatch batch() const {
    return {.tables = tables_.data(),
            .table_stride = stride_,
            .heads = shape_.heads(),
            .kv_heads = shape_.kv_heads(),
            .head_dim = shape_.head_dim,
            .slabs = reinterpret_cast<const std::byte*>(pool_.data()) + layer_offset(),
            .block_bytes = block_bytes(),
            .q = reinterpret_cast<const std::byte*>(q_.data()),
            .scale = static_cast<float>(scale())};
  }
  double scale() const { return std::numbers::log2e / std::sqrt(shape_.head_dim); }
  const std::uint16_t* query(int sequence, int head) const {
    return values(q_) + (std::size_t(sequence) * shape_.heads() + head) * shape_.head_dim;
  }
  const std::uint16_t* page(int sequence, int block, int kv_head) const {
    const std::int32_t id = tables_[sequence * stride_ + block];
    return values(pool_) + (id * block_bytes() + layer_offset() + page_offset(kv_head)) / 2;
  }

  // As decode_fixture has it, with k for D: a score is off by at most scale M (k + 4) U, in units
  // of log2; its weight relatively by ln 2 times that and 2 U of the power of two, and 3 U for each
  // factor that moves it to another maximum, of which there is one for each page of its warp in a
  // run, and two of merges. A weight is rounded to bfloat16 where it meets V: 2^-8. Sums over T
  // tokens, of outputs and of weights, add T U each.
  Row exact(int sequence, int head) const {
    const int kv_head = head / shape_.group, tokens = shape_.blocks[sequence] * kBlockTokens;
    const auto [k, v] = shape_.widths[kv_head];
    const std::uint16_t* const q = query(sequence, head);
    std::vector<double> score(tokens);
    double products_max = 0;
    for (int t = 0; t < tokens; ++t) {
      double products = 0;
      for (int i = 0; i < k; ++i) {
        const double product = value(q[i]) * value(*key(sequence, t, kv_head, i));
        score[t] += product;
        products += std::abs(product);
      }
      products_max = std::max(products_max, products);
    }
    Row row{std::vector<double>(shape_.head_dim), std::vector<double>(shape_.head_dim)};
    if (tokens == 0) return row;
    const double max = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (double& s : score) sum += s = std::exp2((s - max) * scale());
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < v; ++i) {
        const double term = score[t] / sum * value(*value_of(sequence, t, kv_head, i));
        row.exact[i] += term;
        row.allowed[i] += std::abs(term);
      }
    }
    constexpr double kU = 0x1p-23;
    constexpr int kMoves = kNarrowRunBlocks / kDecodeWarps + 2;
    const double weight =
        std::numbers::ln2 * scale() * products_max * (k + 4) * kU + 2 * kU + 3 * kMoves * kU;
    const double share = 0x1p-8 + 2 * (weight + tokens * kU) + 2 * kU;
    // What is below 2^-126 may be lost; channels that are not there are zeros.
    for (int i = 0; i < v; ++i) row.allowed[i] = 1.01 * share * row.allowed[i] + 1e-30;
    return row;
  }

  // `result` is [sequences][heads][head_dim].
  void expect_right(const std::vector<float>& result) const {
    ASSERT_EQ(result.size(), rows() * shape_.head_dim);
    for (std::size_t at = 0; at < rows(); ++at) {
      const int sequence = static_cast<int>(at) / shape_.heads();
      const int head = static_cast<int>(at) % shape_.heads();
      const Row row = exact(sequence, head);
      for (int i = 0; i < shape_.head_dim; ++i) {
        ASSERT_NEAR(result[at * shape_.head_dim + i], row.exact[i], row.allowed[i])
            << "sequence " << sequence << " of " << shape_.blocks[sequence] << " blocks, head "
            << head << " of " << shape_.heads() << ", channel " << i << " of "
            << shape_.widths[head / shape_.group].v;
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
  std::size_t page_offset(int kv_head) const {
    std::size_t bytes = 0;
    for (int i = 0; i < kv_head; ++i) {
      bytes += std::size_t{128} * (shape_.widths[i].k + shape_.widths[i].v);
    }
    return bytes;
  }
  // spec/slab_zack.md, section 3.
  const std::uint16_t* key(int sequence, int token, int kv_head, int channel) const {
    const int t = token % kBlockTokens;
    return page(sequence, token / kBlockTokens, kv_head) + 2 * (channel / 2 * kBlockTokens + t) +
           channel % 2;
  }
  const std::uint16_t* value_of(int sequence, int token, int kv_head, int channel) const {
    const auto [k, v] = shape_.widths[kv_head];
    const int t = token % kBlockTokens;
    return page(sequence, token / kBlockTokens, kv_head) + kBlockTokens * k +
           2 * (t / 2 * v + channel) + t % 2;
  }

  // Standard normal values; queries are `size` times as large.
  void fill(int sequence, unsigned seed) {
    std::mt19937 random(seed * 7919 + static_cast<unsigned>(shape_.blocks[sequence]));
    std::normal_distribution<float> normal;
    const auto draw = [&](const std::uint16_t* at, float size) {
      *const_cast<std::uint16_t*>(at) = to_bf16(size * normal(random)).bits;
    };
    for (int i = 0; i < shape_.heads() * shape_.head_dim; ++i) {
      draw(query(sequence, 0) + i, shape_.size);
    }
    for (int token = 0; token < shape_.blocks[sequence] * kBlockTokens; ++token) {
      for (int head = 0; head < shape_.kv_heads(); ++head) {
        for (int i = 0; i < shape_.widths[head].k; ++i) draw(key(sequence, token, head, i), 1);
        for (int i = 0; i < shape_.widths[head].v; ++i) draw(value_of(sequence, token, head, i), 1);
      }
    }
  }

  const SceneShape shape_;
  std::int32_t stride_ = 0;
  std::vector<std::int32_t> tables_, first_state_;
  std::vector<NarrowSpan> spans_;
  Aligned pool_, q_;
};

}  // namespace kvlane::narrow_fixture
