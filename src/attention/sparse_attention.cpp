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

// K of a prompt as queries read it: a row's own block as rows, those before as they are sealed.
class PromptKeys {
 public:
  PromptKeys(const SparseSpan& span, int layer, int kv_head)
      : table_(*span.table), layer_(layer), kv_head_(kv_head) {
    if (!table_.coded()) return;
    const KvFormat& format = *span.cache->layout().format();
    const std::size_t plane = format.shape().page_plane_elements();
    // Those that rows of this span see as earlier ones.
    const int blocks = (span.position + span.rows - 1) / kBlockTokens;
    opened_.resize(blocks * plane);
    alignas(64) std::uint16_t page[2 * kBlockTokens * kTileHeadDimMax];
    for (int block = 0; block < blocks; ++block) {
      format.open_page({layer, block * kBlockTokens}, table_.sealed(block, layer), kv_head, page);
      std::copy_n(page, plane, opened_.data() + block * plane);
    }
  }

  const std::uint16_t* block(int index, bool own) const {
    if (own || !table_.coded()) return table_.page(index, layer_, kv_head_);
    return opened_.data() + index * table_.pool().shape().page_plane_elements();
  }

 private:
  const BlockTable& table_;
  const int layer_;
  const int kv_head_;
  std::vector<std::uint16_t> opened_;
};

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
  const int head_dim = span.cache->layout().shape().head_dim;
  const int group = batch.heads / kv_heads_of(span);
  const PromptKeys keys(span, batch.layer, kv_head);
  std::vector<float> products(span.position + span.rows);
  const std::span<float> scores =
      span.cache->prompt_scores(batch.layer, kv_head, static_cast<int>(products.size()));
  float query[kTileHeadDimMax];
  for (int i = 0; i < span.rows; ++i) {
    const int position = span.position + i;
    const std::span<float> seen = std::span(products).first(position + 1);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      load_query(batch, span.first_row + i, head, head_dim, query);
      for (int first = 0; first <= position; first += kBlockTokens) {
        const int count = std::min<int>(kBlockTokens, position + 1 - first);
        const int block = first / kBlockTokens;
        key_products(query, keys.block(block, block == position / kBlockTokens), head_dim, count,
                     seen.data() + first);
      }
      to_probabilities({&span.cache->rule(), batch.layer, head, position, 0}, {}, seen);
      for (int token = 0; token <= position; ++token) scores[token] += seen[token];
    }
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
  std::vector<float> products(cache.budget().tokens() + 1);
  float query[kTileHeadDimMax];
  for (int i = 0; i < span.rows; ++i) {
    const int row = span.first_row + i;
    const int position = span.position + i;
    const std::uint16_t* const k = kv + (std::size_t(row) * kv_heads + kv_head) * 2 * head_dim;
    cache.append(batch.layer, kv_head, position, k, k + head_dim);
    attend(batch, span, kv_head, row);
    const std::span<float> seen = std::span(products).first(slots.positions.size());
    const int step = position - cache.prompt_tokens() + 1;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      load_query(batch, row, head, head_dim, query);
      for (std::size_t first = 0; first < seen.size(); first += kBlockTokens) {
        const auto page = static_cast<int>(first / kBlockTokens);
        const auto count = std::min<std::size_t>(kBlockTokens, seen.size() - first);
        key_products(query, cache.page(batch.layer, kv_head, page), key_dim,
                     static_cast<int>(count), seen.data() + first);
      }
      to_probabilities({&cache.rule(), batch.layer, head, position, step}, slots.positions, seen);
      for (std::size_t slot = 0; slot < seen.size(); ++slot) slots.scores[slot] += seen[slot];
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
