// Layers on the CPU. The residual stream and all that is not a product's input stay
// in F32; inputs of products are BF16 for BF16 weights.
// SPDX-License-Identifier: Apache-2.0
#include "model/forward.h"

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/clock.h"
#include "cpu/parallel.h"
#include "model/alignment.h"
#include "ops/rows.h"

namespace kvlane {
namespace {

// Rows that one thread takes at a time in row operations.
constexpr int kRowGrain = 4;
constexpr int kTurnedGrain = 8;  // where rows of several tokens are turned into a basis together

// Less work a layer than this many multiplications is faster on one thread: waking the others for
// each of its parallel loops costs more than they save. Logits that are more get all threads, too.
constexpr double kSerialWorkMax = 5e6;

// Rows that are multiplied together where that makes them much wider, for attention or between the
// two products of an FFN: what comes out stays in the cache. A multiple of what products round to.
constexpr int kWideRows = 256;

// K and V of a token in all KV heads.
std::size_t kv_row_bytes(const ModelConfig& config) {
  return 2 * std::size_t(config.kv_heads) * config.head_dim * sizeof(bf16);
}

// The cache of a sequence behind a prompt from which tokens were evicted; null for all others.
SparseCache* evicted_cache(const ForwardSpan& span) {
  return span.sparse != nullptr && span.sparse->evicted() ? span.sparse : nullptr;
}

}  // namespace

Result<std::unique_ptr<Forward>> Forward::create(const Model& model, int rows_max, int logits_max,
                                                 const KvFormat* format, RankExchange* ranks) {
  if (ranks == nullptr && !model.part().whole()) {
    return internal_error("a part of a model is computed with other ranks only");
  }
  if (has_heads_of_others(model, format) &&
      format->shape().kv_heads != model.whole_config().kv_heads) {
    return internal_error("a format of " + std::to_string(format->shape().kv_heads) +
                          " KV heads is not for a part with " +
                          std::to_string(model.config().kv_heads) + " of " +
                          std::to_string(model.whole_config().kv_heads));
  }
  std::unique_ptr<Forward> forward(new Forward(model, rows_max, logits_max, format, ranks));
  KVLANE_TRY(forward->allocate());
  return forward;
}

Status Forward::allocate() {
  const ModelConfig& config = model_.config();
  const std::size_t rows = Linear::rows_rounded(rows_max_);
  const std::size_t logits_rows = Linear::rows_rounded(logits_max_);
  const std::size_t q_width = std::size_t(config.heads) * config.head_dim;
  const std::size_t q_width_all = std::size_t(model_.whole_config().heads) * config.head_dim;
  const std::size_t qkv_width = q_width + 2 * std::size_t(config.kv_heads) * config.head_dim;
  // Other ranks expect what all rows have at once (spec/ranks.md).
  wide_rows_ = ranks_ != nullptr ? rows_max_ : kWideRows;
  const std::size_t wide_rows = std::min(rows, std::size_t(wide_rows_));
  const std::size_t product_floats =
      std::max(rows * config.hidden, wide_rows * std::max(qkv_width, 2 * std::size_t(config.ffn)));
  const std::size_t input_bytes = element_bytes(model_.row_type());
  q_parts_ = model_.row_type() == ElementType::kF32 ? 2 : 1;
  // Final norms of the rows with logits go through normed_ as well, in the head's own type.
  const std::size_t head_bytes =
      model_.part().ends() ? element_bytes(model_.head().input_type()) : 0;
  const std::size_t normed_bytes =
      std::max(rows * input_bytes, logits_rows * head_bytes) * config.hidden;
  const std::size_t kv_bytes = whole_slabs_ ? kv_row_bytes(model_.whole_config()) : 0;
  const std::size_t wide_bytes = std::max(
      {rows * q_width_all * input_bytes, rows * kv_bytes, wide_rows * config.ffn * input_bytes});
  const std::size_t logits_bytes = logits_rows * config.vocab * sizeof(float);
  const std::size_t own_products = std::max(rows * config.hidden * sizeof(float), logits_bytes);

  const std::size_t sizes[] = {
      line_aligned(rows * config.hidden * sizeof(float)),
      line_aligned(normed_bytes),
      line_aligned(std::max(product_floats * sizeof(float), logits_bytes)),
      line_aligned(rows * q_width * q_parts_ * sizeof(bf16)),
      line_aligned(wide_bytes),
      ranks_ == nullptr ? 0 : line_aligned(wide_bytes),
      ranks_ == nullptr ? 0 : line_aligned(own_products),
  };
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += size;
  KVLANE_ASSIGN(memory_, PageBuffer::allocate(total));
  std::byte* at = memory_.data();
  const auto take = [&](std::size_t size) { return std::exchange(at, at + size); };
  residual_ = reinterpret_cast<float*>(take(sizes[0]));
  normed_ = take(sizes[1]);
  product_ = reinterpret_cast<float*>(take(sizes[2]));
  q_ = reinterpret_cast<std::uint16_t*>(take(sizes[3]));
  wide_ = take(sizes[4]);
  own_wide_ = ranks_ == nullptr ? wide_ : take(sizes[5]);
  own_product_ = reinterpret_cast<float*>(take(sizes[6]));
  const LayerWeights& layer = model_.layers().front();
  for (const Linear* product :
       {layer.qkv.get(), layer.attention_out.get(), layer.ffn_in.get(), layer.ffn_out.get()}) {
    work_per_row_ += static_cast<double>(product->inputs()) * product->outputs();
  }
  row_places_.reserve(rows);
  attention_spans_.reserve(rows);
  return {};
}

// Where each row of the pass lies, and which blocks it completes.
Status Forward::place_rows(std::span<const ForwardSpan> spans) {
  rows_ = 0;
  row_places_.clear();
  logits_rows_.clear();
  attention_spans_.clear();
  scored_spans_.clear();
  sparse_spans_.clear();
  seals_.clear();
  for (const ForwardSpan& span : spans) {
    const int count = static_cast<int>(span.tokens.size());
    SparseCache* const evicted = evicted_cache(span);
    const BlockTable* const table = evicted != nullptr ? nullptr : span.table;
    const int first = evicted != nullptr ? evicted->tokens() : table->tokens();
    if (evicted != nullptr) {
      sparse_spans_.push_back({evicted, nullptr, first, count, rows_});
    } else {
      attention_spans_.push_back({table, first, count, rows_});
      if (span.sparse != nullptr) {
        scored_spans_.push_back({span.sparse, table, first, count, rows_});
      }
    }
    for (int i = 0; i < count; ++i) row_places_.push_back({table, first + i});
    rows_ += count;
    for (int back = span.logits; back > 0; --back) logits_rows_.push_back(rows_ - back);
    if (!format_ || evicted != nullptr) continue;
    KVLANE_TRY(span.table->open_rows(first + count));
    for (int block = first / kBlockTokens; block < (first + count) / kBlockTokens; ++block) {
      seals_.push_back({span.table, block, {}});
    }
  }
  if (rows_ == 0 || rows_ > rows_max_ || logits_rows_.size() > std::size_t(logits_max_)) {
    return internal_error("a pass of " + std::to_string(rows_) + " rows does not fit its buffers");
  }
  if (!sparse_spans_.empty()) {
    const ModelConfig& config = model_.config();
    sparse_rows_.resize(std::size_t(rows_) * config.kv_heads * 2 * config.head_dim);
  }
  return {};
}

// Encodes the slabs of this layer that are complete: later rows of this very pass read them.
Status Forward::seal(int layer) {
  if (seals_.empty()) return {};
  const ScopedTimer timer(times_.quantise);
  parallel_for(static_cast<std::int64_t>(seals_.size()), [&](std::int64_t i) {
    Seal& seal = seals_[i];
    seal.status =
        format_->seal({layer, seal.block * kBlockTokens}, seal.table->rows(seal.block, layer),
                      seal.table->sealed(seal.block, layer));
  });
  for (const Seal& sealed : seals_) KVLANE_TRY(sealed.status);
  return {};
}

Status Forward::run(std::span<const ForwardSpan> spans, const PassHooks& hooks) {
  times_ = {};
  const ScopedTimer timer(times_.total);
  KVLANE_TRY(check_kv_layers(hooks, spans, model_.config().layers));
  if (ranks_ != nullptr && hooks.kv_layers) {
    return unsupported("ranks that compute a model together compute all of its layers");
  }
  in_step_ = false;
  not_sealed_ = {};
  KVLANE_TRY(place_rows(spans));
  const auto& layers = model_.layers();
  const int all = static_cast<int>(layers.size());
  const int computed = hooks.kv_layers.value_or(all);
  const bool parallel = model_.config().parallel;
  // Thread counts do not change bits, so they may follow the work.
  double work = rows_ * work_per_row_;
  const double work_per_pair = 2.0 * model_.config().heads * model_.config().head_dim;
  for (const AttentionSpan& span : attention_spans_) {
    work += work_per_pair * span.rows * (span.position + span.rows);
  }
  threads_ = parallel_threads();
  const ParallelScope threads(work < kSerialWorkMax ? 1 : threads_);
  KVLANE_TRY(enter(spans));
  for (int i = 0; i < computed; ++i) {
    const int layer = first_layer_ + i;
    const bool whole = !hooks.kv_layers || i + 1 < computed;
    if (hooks.on_input) {
      hooks.on_input(layer, {residual_, std::size_t(rows_) * model_.config().hidden});
    }
    KVLANE_TRY(project_qkv(layers[i], layer, hooks));
    // Beside attention, it reads the stream that attention has not added to.
    if (whole && parallel) KVLANE_TRY(ffn_block(layers[i]));
    if (whole) {
      if (hooks.before_attention) hooks.before_attention(layer);
      KVLANE_TRY(attention_block(layers[i], layer));
    }
    if (hooks.on_layer) hooks.on_layer(layer, nullptr);
    if (whole && !parallel) KVLANE_TRY(ffn_block(layers[i]));
  }
  KVLANE_TRY(leave());
  in_step_ = true;
  KVLANE_TRY(not_sealed_);
  for (const ForwardSpan& span : spans) {
    const int count = static_cast<int>(span.tokens.size());
    if (evicted_cache(span) != nullptr) {
      span.sparse->set_tokens(span.sparse->tokens() + count);
    } else {
      span.table->set_tokens(span.table->tokens() + count);
    }
  }
  return {};
}

// What the first layer here reads.
Status Forward::enter(std::span<const ForwardSpan> spans) {
  const std::size_t values = std::size_t(rows_) * model_.config().hidden;
  if (!model_.part().begins()) {
    return ranks_->receive(reinterpret_cast<std::byte*>(residual_), values * sizeof(float));
  }
  embed(spans);
  return {};
}

// Behind the last layer here.
Status Forward::leave() {
  if (model_.part().ends()) return project_logits();
  return ranks_->send(std::as_bytes(
      std::span<const float>(residual_, std::size_t(rows_) * model_.config().hidden)));
}

void Forward::embed(std::span<const ForwardSpan> spans) {
  const int hidden = model_.config().hidden;
  int row = 0;
  for (const ForwardSpan& span : spans) {
    for (const std::int32_t token : span.tokens) {
      model_.embed(token, row_places_[row].position, residual_ + std::size_t(row) * hidden);
      ++row;
    }
  }
}

// Of all rows, from the residual stream to `normed_`.
void Forward::norm(const NormWeights& weights, ElementType type) {
  const std::size_t hidden = model_.config().hidden;
  parallel_ranges(rows_, kRowGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      float* const scratch = product_ + row * hidden;
      model_.norm(weights, residual_ + row * hidden, model_.config().hidden, scratch);
      store_row(scratch, model_.config().hidden, type,
                normed_ + row * hidden * element_bytes(type));
    }
  });
}

// What a product has left for `rows` goes into their part of the residual stream.
void Forward::add_product(float* residual, int rows) {
  const std::size_t hidden = model_.config().hidden;
  parallel_ranges(rows, kRowGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      add_row(residual + row * hidden, product_ + row * hidden, model_.config().hidden);
    }
  });
}

Status Forward::multiply(const Linear& linear, const void* x, float* y, int rows) {
  const ScopedTimer timer(times_.gemm);
  return linear.apply(x, y, rows);
}

// The same of a product whose outputs are shared out: `outputs` of all ranks.
Status Forward::multiply_and_gather(const Linear& linear, const void* x, float* y, int rows,
                                    int outputs) {
  if (ranks_ == nullptr) return multiply(linear, x, y, rows);
  KVLANE_TRY(multiply(linear, x, own_product_, rows));
  const std::span<const float> own(own_product_, std::size_t(rows) * linear.outputs());
  return ranks_->gather(std::as_bytes(own), rows, outputs * sizeof(float),
                        reinterpret_cast<std::byte*>(y));
}

// From `own_wide_`, [rows][own] values, to `wide_`, [rows][all] of all ranks.
Status Forward::gather_wide(int rows, int own, int all, ElementType type) {
  if (ranks_ == nullptr) return {};
  const std::size_t bytes = element_bytes(type);
  return ranks_->gather({own_wide_, std::size_t(rows) * own * bytes}, rows, all * bytes, wide_);
}

// Up to K and V in the cache.
Status Forward::project_qkv(const LayerWeights& layer, int index, const PassHooks& hooks) {
  const ModelConfig& config = model_.config();
  const std::size_t hidden = config.hidden;
  const ElementType type = model_.row_type();
  norm(layer.attention_norm, type);
  for (int first = 0; first < rows_; first += wide_rows_) {
    const int count = std::min(wide_rows_, rows_ - first);
    const std::byte* const normed = normed_ + first * hidden * element_bytes(type);
    KVLANE_TRY(multiply(*layer.qkv, normed, product_, count));
    write_qkv(layer, index, first, count);
  }
  KVLANE_TRY(gather_rows(index));
  if (hooks.on_queries) {
    const std::size_t width = std::size_t(config.heads) * q_parts_ * config.head_dim;
    hooks.on_queries(index, {q_, rows_ * width}, q_parts_);
  }
  if (Status sealed = seal(index); !sealed.ok()) {
    if (ranks_ == nullptr) return sealed;
    if (not_sealed_.ok()) not_sealed_ = std::move(sealed);
  }
  if (hooks.on_normed) hooks.on_normed(index, {normed_, rows_ * hidden * element_bytes(type)});
  return {};
}

Status Forward::attention_block(const LayerWeights& layer, int index) {
  const ModelConfig& config = model_.config();
  const ElementType type = model_.row_type();
  attend(index, type);
  KVLANE_TRY(gather_wide(rows_, config.heads * config.head_dim,
                         model_.whole_config().heads * config.head_dim, type));
  KVLANE_TRY(multiply_and_gather(*layer.attention_out, wide_, product_, rows_, config.hidden));
  add_product(residual_, rows_);
  return {};
}

void Forward::attend(int layer, ElementType out_type) {
  const ScopedTimer timer(times_.attention);
  const AttentionBatch batch{layer,
                             model_.config().heads,
                             attention_spans_,
                             q_,
                             q_parts_,
                             out_type,
                             own_wide_,
                             model_.whole_config().window_of(layer),
                             first_head_,
                             model_.config().kv_heads};
  if (!attention_spans_.empty()) {
    attention_.run(batch);
    times_.dequantise += attention_.opening_seconds();
  }
  sparse_attention_.score(batch, scored_spans_);
  sparse_attention_.run(batch, sparse_spans_, sparse_rows_.data());
}

// Where the format wants it: query heads of several tokens, `stride` numbers apart.
void Forward::turn_queries(float* queries, int layer, int tokens, std::size_t stride) {
  if (format_ == nullptr) return;
  const ModelConfig& config = model_.config();
  const int d = config.head_dim;
  const int group = config.heads / config.kv_heads;
  for (int kv_head = 0; kv_head < config.kv_heads; ++kv_head, queries += group * d) {
    const float* const rotation = format_->query_rotation(layer, first_head_ + kv_head);
    if (rotation == nullptr) continue;
    rotate_heads(rotate_rows_, rotation, d, queries, group, tokens, stride);
  }
}

// Norms (where the model has them) and rotates Q and K of some rows, then Q goes to its buffer, K
// and V to the blocks, or to `own_wide_` where these have heads of other ranks.
void Forward::write_qkv(const LayerWeights& layer, int index, int first_row, int count) {
  const ModelConfig& config = model_.config();
  const int d = config.head_dim;
  const int keys_begin = config.heads * d;
  const int width = keys_begin + 2 * config.kv_heads * d;
  parallel_ranges(count, kTurnedGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      float* const queries = product_ + i * width;
      const int position = row_places_[first_row + i].position;
      const RopeAngles angles = model_.rope().angles(position);
      for (int h = 0; h < config.heads; ++h) {
        float* const query = queries + h * d;
        if (config.qk_norm) rms_norm(query, layer.q_norm.weight.data(), config.norm_eps, d, query);
        rope(query, angles, d);
      }
      key_rows_.place(queries + keys_begin, index, position);
    }
    float* const heads = product_ + first * width;
    const int tokens = static_cast<int>(last - first);
    turn_queries(heads, index, tokens, width);
    key_rows_.turn(heads + keys_begin, index, tokens, width);
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t row = first_row + i;
      float* head = product_ + i * width;
      for (int h = 0; h < config.heads; ++h, head += d) {
        store_query(head, q_ + (row * config.heads + h) * q_parts_ * d);
      }
      for (int h = 0; h < config.kv_heads; ++h, head += d) {
        const RowMemory memory = row_memory(static_cast<int>(row), index, h);
        store_row(head, d, ElementType::kBf16, memory.k);
        store_row(head + config.kv_heads * d, d, ElementType::kBf16, memory.v);
      }
    }
  });
}

// Where a row's K and V of one head go.
Forward::RowMemory Forward::row_memory(int row, int layer, int kv_head) {
  const ModelConfig& config = model_.config();
  const std::size_t d = config.head_dim;
  const Row& place = row_places_[row];
  if (place.table == nullptr || whole_slabs_) {
    std::uint16_t* const rows =
        whole_slabs_ ? reinterpret_cast<std::uint16_t*>(own_wide_) : sparse_rows_.data();
    std::uint16_t* const k = rows + (std::size_t(row) * config.kv_heads + kv_head) * 2 * d;
    return {k, k + d};
  }
  std::uint16_t* const page = place.table->page(place.position / kBlockTokens, layer, kv_head);
  std::uint16_t* const k = page + place.position % kBlockTokens * d;
  return {k, k + kBlockTokens * d};
}

// K and V of the heads of all ranks to the blocks, where these have them.
Status Forward::gather_rows(int layer) {
  if (!whole_slabs_) return {};
  const ModelConfig& whole = model_.whole_config();
  const int d = whole.head_dim;
  KVLANE_TRY(gather_wide(rows_, 2 * model_.config().kv_heads * d, 2 * whole.kv_heads * d,
                         ElementType::kBf16));
  parallel_ranges(rows_, kRowGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const auto* values =
          reinterpret_cast<const std::uint16_t*>(wide_ + row * kv_row_bytes(whole));
      const Row& place = row_places_[row];
      for (int head = 0; head < whole.kv_heads; ++head, values += 2 * d) {
        std::uint16_t* const k = place.table->page(place.position / kBlockTokens, layer, head) +
                                 std::size_t(place.position) % kBlockTokens * d;
        std::copy_n(values, d, k);
        std::copy_n(values + d, d, k + kBlockTokens * d);
      }
    }
  });
  return {};
}

// A query head in q_parts_ BF16 parts: each rounds what the ones before it left over.
void Forward::store_query(float* head, std::uint16_t* parts) const {
  const int d = model_.config().head_dim;
  for (int part = 0; part < q_parts_; ++part, parts += d) {
    for (int i = 0; i < d; ++i) {
      const bf16 rounded = to_bf16(head[i]);
      parts[i] = rounded.bits;
      head[i] -= to_float(rounded);
    }
  }
}

Status Forward::ffn_block(const LayerWeights& layer) {
  norm(layer.ffn_norm, model_.row_type());
  for (int first = 0; first < rows_; first += wide_rows_) {
    KVLANE_TRY(ffn_rows(layer, first, std::min(wide_rows_, rows_ - first)));
  }
  return {};
}

// From `normed_` to the residual stream.
Status Forward::ffn_rows(const LayerWeights& layer, int first, int count) {
  const std::size_t hidden = model_.config().hidden;
  const ElementType type = model_.row_type();
  const std::byte* const normed = normed_ + first * hidden * element_bytes(type);
  KVLANE_TRY(multiply(*layer.ffn_in, normed, product_, count));
  const int width = layer.ffn_in->outputs();
  const int ffn = model_.config().activation == Activation::kSwiGlu ? width / 2 : width;
  parallel_ranges(count, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* const values = product_ + row * width;
      activate(values, ffn);
      store_row(values, ffn, type, own_wide_ + row * ffn * element_bytes(type));
    }
  });
  KVLANE_TRY(gather_wide(count, ffn, model_.config().ffn, type));
  KVLANE_TRY(multiply_and_gather(*layer.ffn_out, wide_, product_, count, model_.config().hidden));
  add_product(residual_ + first * hidden, count);
  return {};
}

// One row between the two products, in place.
void Forward::activate(float* values, int ffn) const {
  switch (model_.config().activation) {
    case Activation::kSwiGlu: silu_multiply(values, values + ffn, ffn, values); break;
    case Activation::kRelu: relu(values, ffn); break;
    case Activation::kGelu: gelu(values, ffn); break;
  }
}

Status Forward::project_logits() {
  const ModelConfig& config = model_.config();
  const std::size_t hidden = config.hidden;
  const ElementType type = model_.head().input_type();
  const auto rows = static_cast<int>(logits_rows_.size());
  if (rows == 0) return {};
  const double work = static_cast<double>(rows) * model_.head().inputs() * model_.head().outputs();
  const ParallelScope threads(work < kSerialWorkMax ? parallel_threads() : threads_);
  parallel_ranges(rows, kRowGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      float* values = residual_ + logits_rows_[row] * hidden;
      model_.norm(model_.final_norm(), values, config.hidden, values);
      store_row(values, config.hidden, type, normed_ + row * hidden * element_bytes(type));
    }
  });
  return multiply_and_gather(model_.head(), normed_, product_, rows, config.vocab);
}

std::span<float> Forward::logits(int index) const {
  const std::size_t vocab = model_.config().vocab;
  return {product_ + index * vocab, vocab};
}

}  // namespace kvlane
