// Heads side by side, the tokens of each one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/token_scores.h"
#include "base/bf16.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

constexpr int kTileQueries = 32;

int kv_heads_of(const SparseSpan& span) { return span.cache->layout().shape().kv_heads; }

const std::uint16_t* query_of(const AttentionBatch& batch, int row, int head, int head_dim) {
  return batch.q + (std::size_t(row) * batch.heads + head) * batch.q_parts * head_dim;
}

// A query in F32, times 1 / sqrt(head_dim).
void load_query(const AttentionBatch& batch, int row, int head, int head_dim, float* query) {
  const std::uint16_t* const parts = query_of(batch, row, head, head_dim);
  const float scale = static_cast<float>(1 / std::sqrt(head_dim));
  for (int i = 0; i < head_dim; ++i) {
    float x = 0;
    for (int part = 0; part < batch.q_parts; ++part) {
      x += to_float(bf16{parts[part * head_dim + i]});
    }
    query[i] = x * scale;
  }
}

void store_output(const AttentionBatch& batch, int row, int head, int head_dim, const float* out,
                  int width, float scale) {
  const std::size_t at = (std::size_t(row) * batch.heads + head) * head_dim;
  const auto value = [&](int i) { return i < width ? out[i] * scale : 0.0F; };
  if (batch.out_type == ElementType::kF32) {
    float* const to = static_cast<float*>(batch.out) + at;
    for (int i = 0; i < head_dim; ++i) to[i] = value(i);
  } else {
    bf16* const to = static_cast<bf16*>(batch.out) + at;
    for (int i = 0; i < head_dim; ++i) to[i] = to_bf16(value(i));
  }
}

// K of a prompt's KV head as queries read it, channel by channel, [head_dim][kBlockTokens] of a
// block in F32: a row's own block as rows, those before as they are sealed.
class PromptKeys {
 public:
  PromptKeys(const SparseSpan& span, int layer, int kv_head)
      : table_(*span.table), layer_(layer), kv_head_(kv_head) {
    // Those that rows of this span see as earlier ones, and the own one behind them.
    earlier_ = (span.position + span.rows - 1) / kBlockTokens;
    keys_.resize((earlier_ + 1) * block_values());
    const KvFormat* const format = span.cache->layout().format();
    alignas(64) std::uint16_t opened[2 * kBlockTokens * kTileHeadDimMax];
    for (int block = 0; block < earlier_; ++block) {
      const std::uint16_t* page = opened;
      if (table_.coded()) {
        format->open_page({layer, block * kBlockTokens}, table_.sealed(block, layer), kv_head,
                          opened);
      } else {
        page = table_.page(block, layer, kv_head);
      }
      transpose(page, block);
    }
  }

  // The rows of a block, until the next call.
  const float* own(int block) {
    transpose(table_.page(block, layer_, kv_head_), earlier_);
    return at(earlier_);
  }
  const float* earlier(int block) const { return at(block); }

 private:
  std::size_t block_values() const { return table_.pool().shape().page_plane_elements(); }
  const float* at(int index) const { return keys_.data() + index * block_values(); }

  void transpose(const std::uint16_t* page, int index) {
    const int head_dim = table_.pool().shape().head_dim;
    float* const to = keys_.data() + index * block_values();
    for (int token = 0; token < kBlockTokens; ++token) {
      for (int i = 0; i < head_dim; ++i) {
        to[i * kBlockTokens + token] = to_float(bf16{page[token * head_dim + i]});
      }
    }
  }

  const BlockTable& table_;
  const int layer_;
  const int kv_head_;
  int earlier_;
  std::vector<float> keys_;
};

// Noise and softmax as the rule wants them.
void add_scores(const ScoreKernels& kernels, const EvictionRule& rule, const NoiseOf& query,
                int step, const std::int32_t* positions, int count, float* products,
                float* scores) {
  float scale = 1;
  if (rule.score == EvictionRule::Score::kKeyformer) {
    kernels.add_noise(query, positions, count, products);
    scale = 1 / rule.temperature(step);
  }
  kernels.add_probabilities(scale, count, products, scores);
}

// Calls body(span, kv_head) for all heads of all spans.
template <class Body>
void for_heads(std::span<const SparseSpan> spans, const Body& body) {
  if (spans.empty()) return;
  const int kv_heads = kv_heads_of(spans.front());
  parallel_for(static_cast<std::int64_t>(spans.size()) * kv_heads,
               [&](std::int64_t i) { body(spans[i / kv_heads], static_cast<int>(i % kv_heads)); });
}

}  // namespace

void SparseAttention::score(const AttentionBatch& batch, std::span<const SparseSpan> spans) const {
  for_heads(spans, [&](const SparseSpan& span, int kv_head) { score_head(batch, span, kv_head); });
}

void SparseAttention::score_head(const AttentionBatch& batch, const SparseSpan& span,
                                 int kv_head) const {
  const EvictionRule& rule = span.cache->rule();
  const int head_dim = span.cache->layout().shape().head_dim;
  const int group = batch.heads / kv_heads_of(span);
  const int tokens = span.position + span.rows;
  const std::size_t stride = std::size_t(blocks_for(tokens)) * kBlockTokens;
  // So many rows at once that a block of keys, once it is near, serves many queries.
  const int tile_rows = std::max(1, kTileQueries / group);
  PromptKeys keys(span, batch.layer, kv_head);
  std::vector<float> queries(std::size_t(tile_rows) * group * head_dim);
  std::vector<float> products(tile_rows * group * stride);
  const std::span<float> scores = span.cache->prompt_scores(batch.layer, kv_head, tokens);
  for (int position = span.position; position < tokens;) {
    const int own = position / kBlockTokens;
    const int rows = std::min({tile_rows, tokens - position, (own + 1) * kBlockTokens - position});
    for (int i = 0; i < rows * group; ++i) {
      load_query(batch, span.first_row + position - span.position + i / group,
                 kv_head * group + i % group, head_dim, queries.data() + i * head_dim);
    }
    for (int block = 0; block <= own; ++block) {
      const float* const of_block = block == own ? keys.own(block) : keys.earlier(block);
      for (int i = 0; i < rows * group; ++i) {
        kernels_.block_products(queries.data() + i * head_dim, of_block, head_dim,
                                products.data() + i * stride + block * kBlockTokens);
      }
    }
    for (int i = 0; i < rows * group; ++i) {
      const int row = position + i / group;
      add_scores(kernels_, rule, {rule.seed, batch.layer, kv_head * group + i % group, row}, 0,
                 nullptr, row + 1, products.data() + i * stride, scores.data());
    }
    position += rows;
  }
}

void SparseAttention::run(const AttentionBatch& batch, std::span<const SparseSpan> spans,
                          const std::uint16_t* kv) const {
  for_heads(spans,
            [&](const SparseSpan& span, int kv_head) { run_head(batch, span, kv_head, kv); });
}

void SparseAttention::run_head(const AttentionBatch& batch, const SparseSpan& span, int kv_head,
                               const std::uint16_t* kv) const {
  SparseCache& cache = *span.cache;
  const int head_dim = cache.layout().shape().head_dim;
  const int key_dim = cache.layout().page(batch.layer, kv_head).widths.k;
  const int kv_heads = kv_heads_of(span);
  const int group = batch.heads / kv_heads;
  HeadSlots& slots = cache.head(batch.layer, kv_head);
  std::vector<float> products(std::size_t(blocks_for(cache.budget().tokens() + 1)) * kBlockTokens);
  float query[kTileHeadDimMax];
  for (int i = 0; i < span.rows; ++i) {
    const int row = span.first_row + i;
    const int position = span.position + i;
    const std::uint16_t* const k = kv + (std::size_t(row) * kv_heads + kv_head) * 2 * head_dim;
    cache.append(batch.layer, kv_head, position, k, k + head_dim);
    attend(batch, span, kv_head, row);
    const auto held = static_cast<int>(slots.positions.size());
    const int step = position - cache.prompt_tokens() + 1;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      load_query(batch, row, head, head_dim, query);
      for (int first = 0; first < held; first += kBlockTokens) {
        kernels_.row_products(query, cache.page(batch.layer, kv_head, first / kBlockTokens),
                              key_dim, std::min<int>(kBlockTokens, held - first),
                              products.data() + first);
      }
      add_scores(kernels_, cache.rule(), {cache.rule().seed, batch.layer, head, position}, step,
                 slots.positions.data(), held, products.data(), slots.scores.data());
    }
    cache.discard(batch.layer, kv_head, position);
  }
}

// One row's query heads of a KV head over all of its slots.
void SparseAttention::attend(const AttentionBatch& batch, const SparseSpan& span, int kv_head,
                             int row) const {
  const SparseCache& cache = *span.cache;
  const int head_dim = cache.layout().shape().head_dim;
  const HeadWidths widths = cache.layout().page(batch.layer, kv_head).widths;
  const int group = batch.heads / kv_heads_of(span);
  const auto held = static_cast<int>(cache.head(batch.layer, kv_head).positions.size());
  for (int first = 0; first < group; first += kTileRows) {
    const int heads = std::min(kTileRows, group - first);
    PageQuery query;
    for (int i = 0; i < heads; ++i) {
      query.q[i] = query_of(batch, row, kv_head * group + first + i, head_dim);
    }
    query.parts = batch.q_parts;
    query.part_stride = head_dim;
    query.key_dim = widths.k;
    query.scale = static_cast<float>(1.4426950408889634 / std::sqrt(head_dim));
    StateTile state;
    state.reset(heads, widths.v);
    for (int page = 0; page < blocks_for(held); ++page) {
      query.tokens = std::min<int>(kBlockTokens, held - page * kBlockTokens);
      std::fill_n(query.visible, heads, query.tokens);
      kernel_(query, cache.page(batch.layer, kv_head, page), state);
    }
    for (int i = 0; i < heads; ++i) {
      store_output(batch, row, kv_head * group + first + i, head_dim, state.out + i * widths.v,
                   widths.v, 1 / state.sum[i]);
    }
  }
}

}  // namespace kvlane
