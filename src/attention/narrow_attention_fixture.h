// Attention over narrow pages as tests see it, in decode and in prefill: sequences of sealed blocks
// in a pool with everything else poisoned, exact results in double precision, and how far a kernel
// may be from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "attention/narrow_decode_gpu.h"
#include "attention/narrow_prefill_gpu.h"
#include "base/bf16.h"
#include "cpu/parallel.h"
#include "format/shape.h"
#include "gpu/device_code.h"
#include "gpu/device_float.h"

namespace kvlane::narrow_fixture {

// Bytes that begin at a multiple of 16.
using Aligned = std::vector<gpu::Words4>;

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// Rows [position, position + rows) of a sequence.
struct SpanShape {
  int position;
  int rows;
};

struct SceneShape {
  int group;  // query heads a KV head
  std::vector<HeadWidths> widths;
  int head_dim;
  std::vector<std::int32_t> blocks;  // of each sequence
  float size = 4;                    // of queries: how much some tokens weigh more than others
  // Of each sequence; without them each has one row, which sees all blocks.
  std::vector<SpanShape> spans = {};
  KvWindow window = {};  // the blocks that rows of spans do not see sealed

  int kv_heads() const { return static_cast<int>(widths.size()); }
  int heads() const { return group * kv_heads(); }
};

// One row of the result.
struct Row {
  std::vector<double> exact;
  std::vector<double> allowed;  // how far a result in F32 may be away from it
  // Of all tokens' state. The maximum is in units of log2; without tokens there is none.
  double max = 0, max_allowed = 0;
  double sum = 0, sum_allowed = 0;
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
    for (int sequence = 0; sequence < sequences; ++sequence) {
      const bool one = shape_.spans.empty();
      const SpanShape span = one ? SpanShape{0, 1} : shape_.spans[sequence];
      prefill_spans_.push_back({span.position, span.rows, tokens_});
      tokens_ += span.rows + (one ? 0 : 1);  // behind the rows of a span is one that none has
    }
    q_.resize(rows() * shape_.head_dim / 8);
    std::fill_n(values(q_), q_.size() * 8, kNan);
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
  // Of heads: of all tokens that have queries.
  std::size_t rows() const { return std::size_t(tokens_) * shape_.heads(); }
  const std::vector<PrefillSpan>& prefill_spans() const { return prefill_spans_; }
  // Where the KV heads' pages are.
  std::vector<NarrowHead> heads() const {
    std::vector<NarrowHead> all;
    for (int i = 0; i < shape_.kv_heads(); ++i) {
      const auto page = static_cast<std::int32_t>(page_offset(i));
      all.push_back({page, shape_.widths[i].k, shape_.widths[i].v});
    }
    return all;
  }
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
  // The same; the list of pages is the caller's, too.
  NarrowPrefillBatch prefill_batch() const {
    const NarrowDecodeBatch like = batch();
    return {.tables = like.tables,
            .table_stride = like.table_stride,
            .heads = like.heads,
            .kv_heads = like.kv_heads,
            .head_dim = like.head_dim,
            .slabs = like.slabs,
            .block_bytes = like.block_bytes,
            .window = shape_.window,
            .q = like.q,
            .scale = like.scale};
  }
  double scale() const { return std::numbers::log2e / std::sqrt(shape_.head_dim); }
  const std::uint16_t* query(int token, int head) const {
    return values(q_) + (std::size_t(token) * shape_.heads() + head) * shape_.head_dim;
  }
  const std::uint16_t* page(int sequence, int block, int kv_head) const {
    const std::int32_t id = tables_[sequence * stride_ + block];
    return values(pool_) + (id * block_bytes() + layer_offset() + page_offset(kv_head)) / 2;
  }

  // Of a row of a sequence, one head. As decode_fixture and prefill_fixture have it, with k for D:
  // a score is off by at most scale M (k + 4) U, in units of log2; its weight relatively by ln 2
  // times that and 2 U of the power of two, and 3 U for each factor that moves it to another
  // maximum, of which there is one for each page that its warp has: in decode of a run, and two of
  // merges. A weight is rounded to bfloat16: in decode where it meets V, 2^-8; in prefill for
  // outputs and for sums, 2^-9 each. Sums over T tokens, of outputs and of weights, add T U each.
  Row exact(int sequence, int row, int head) const {
    const int kv_head = head / shape_.group;
    const auto [begin, end] = blocks_of(sequence, row);
    const auto [k, v] = shape_.widths[kv_head];
    const std::uint16_t* const q = query(prefill_spans_[sequence].first_row + row, head);
    const int tokens = (end - begin) * kBlockTokens;
    std::vector<double> score(tokens);
    double products_max = 0;
    for (int t = 0; t < tokens; ++t) {
      double products = 0;
      for (int i = 0; i < k; ++i) {
        const int token = begin * kBlockTokens + t;
        const double product = value(q[i]) * value(*key(sequence, token, kv_head, i));
        score[t] += product;
        products += std::abs(product);
      }
      products_max = std::max(products_max, products);
    }
    Row of{std::vector<double>(shape_.head_dim), std::vector<double>(shape_.head_dim)};
    if (tokens == 0) return of;
    of.max = scale() * *std::max_element(score.begin(), score.end());
    for (double& s : score) of.sum += s = std::exp2(s * scale() - of.max);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < v; ++i) {
        const int token = begin * kBlockTokens + t;
        const double term = score[t] / of.sum * value(*value_of(sequence, token, kv_head, i));
        of.exact[i] += term;
        of.allowed[i] += std::abs(term);
      }
    }
    constexpr double kU = 0x1p-23;
    const int moves = shape_.spans.empty() ? kNarrowRunBlocks / kDecodeWarps + 2 : end - begin + 1;
    of.max_allowed = 1.01 * scale() * products_max * (k + 4) * kU;
    const double weight = std::numbers::ln2 * of.max_allowed + 2 * kU + 3 * moves * kU;
    const double share = 0x1p-8 + 2 * (weight + tokens * kU) + 2 * kU;
    of.sum_allowed = 1.01 * share * of.sum;
    // What is below 2^-126 may be lost; channels that are not there are zeros.
    for (int i = 0; i < v; ++i) of.allowed[i] = 1.01 * share * of.allowed[i] + 1e-30;
    return of;
  }

  // `result` is [tokens][heads][head_dim], or, with `max` and `sum` ([tokens][heads]), states.
  void expect_right(const std::vector<float>& result, const std::vector<float>* max = nullptr,
                    const std::vector<float>* sum = nullptr) const {
    ASSERT_EQ(result.size(), rows() * shape_.head_dim);
    for (int sequence = 0; sequence < static_cast<int>(shape_.blocks.size()); ++sequence) {
      std::vector<Row> all(std::size_t(prefill_spans_[sequence].rows) * shape_.heads());
      parallel_for(static_cast<std::int64_t>(all.size()), [&](std::int64_t at) {
        const int i = static_cast<int>(at);
        all[i] = exact(sequence, i / shape_.heads(), i % shape_.heads());
      });
      for (int i = 0; i < prefill_spans_[sequence].rows * shape_.heads(); ++i) {
        const int row = i / shape_.heads(), head = i % shape_.heads();
        const Row& right = all[i];
        const std::size_t at =
            std::size_t(prefill_spans_[sequence].first_row + row) * shape_.heads() + head;
        float by = 1;
        if (max != nullptr && right.sum == 0) {
          ASSERT_EQ((*max)[at], gpu::minus_infinity());
          ASSERT_EQ((*sum)[at], 0);
        } else if (max != nullptr) {
          ASSERT_NEAR((*max)[at], right.max, right.max_allowed);
          ASSERT_NEAR((*sum)[at] * std::exp2((*max)[at] - right.max), right.sum, right.sum_allowed);
          by = (*sum)[at];
        }
        for (int c = 0; c < shape_.head_dim; ++c) {
          ASSERT_NEAR(result[at * shape_.head_dim + c] / by, right.exact[c], right.allowed[c])
              << "sequence " << sequence << " of " << shape_.blocks[sequence] << " blocks, row "
              << row << ", head " << head << " of " << shape_.heads() << ", channel " << c << " of "
              << shape_.widths[head / shape_.group].v;
        }
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
  // Sealed blocks that a row sees.
  struct Blocks {
    int begin, end;
  };
  Blocks blocks_of(int sequence, int row) const {
    if (shape_.spans.empty()) return {0, shape_.blocks[sequence]};
    const int own = (shape_.spans[sequence].position + row) / kBlockTokens;
    const int begin = shape_.window.sink;
    return {begin, std::max(begin, own - shape_.window.recent)};
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
    const PrefillSpan& span = prefill_spans_[sequence];
    for (int i = 0; i < span.rows * shape_.heads() * shape_.head_dim; ++i) {
      draw(query(span.first_row, 0) + i, shape_.size);
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
  std::vector<PrefillSpan> prefill_spans_;
  int tokens_ = 0;  // that have queries
  Aligned pool_, q_;
};

}  // namespace kvlane::narrow_fixture
