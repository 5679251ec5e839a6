// Copies what a pass needs, and gives the device its kernels.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "attention/decode_gpu.h"
#include "attention/prefill_gpu.h"
#include "base/bf16.h"
#include "base/clock.h"
#include "model/alignment.h"
#include "ops/greedy_batch.h"
#include "ops/products_gpu.h"
#include "ops/rows_batch.h"

namespace kvlane {
namespace {

// Shapes of one engine: the longest context has some two dozen strides.
constexpr std::size_t kGraphsMax = 64;

// Cuts a buffer into parts.
class Cutter {
 public:
  explicit Cutter(std::byte* begin) : begin_(begin) {}
  template <class T>
  T* take(std::size_t count) {
    return reinterpret_cast<T*>(begin_ +
                                std::exchange(at_, at_ + device_aligned(count * sizeof(T))));
  }

 private:
  std::byte* begin_;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::unique_ptr<DeviceForward>> DeviceForward::create(const DeviceModel& model,
                                                             Accelerator& device, int rows_max,
                                                             int logits_max, bool replays,
                                                             std::optional<DeviceFormat> format,
                                                             KeptLayers kept) {
  std::unique_ptr<DeviceForward> forward(
      new DeviceForward(model, device, rows_max, logits_max, replays, kept));
  KVLANE_TRY(forward->allocate(format));
  return forward;
}

std::size_t DeviceForward::kept_bytes(int layers) const {
  return std::size_t(layers) * rows_max_ * model_.config().hidden * sizeof(bf16);
}

Status DeviceForward::allocate(const std::optional<DeviceFormat>& format) {
  const ModelConfig& c = model_.config();
  KVLANE_ASSIGN(decode_shape_,
                decode_shape(c.heads, c.kv_heads, c.head_dim, device_.multiprocessors()));
  KVLANE_ASSIGN(prefill_shape_, prefill_shape(c.heads, c.kv_heads, c.head_dim));
  if (format) {
    KVLANE_ASSIGN(coded_, DeviceCodedPass::create(*format, c, device_, rows_max_));
  }
  scale_ = static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(c.head_dim)));

  const std::size_t rows = rows_max_, logits = logits_max_, hidden = c.hidden, ffn = c.ffn;
  const std::size_t q_width = std::size_t(c.heads) * c.head_dim;
  const std::size_t qkv_width = q_width + 2 * std::size_t(c.kv_heads) * c.head_dim;
  const std::size_t sizes[] = {
      rows * hidden * sizeof(float),
      std::max(rows, logits) * hidden * sizeof(bf16),
      rows * std::max(qkv_width, 2 * ffn) * sizeof(float),
      rows * q_width * sizeof(bf16),
      rows * std::max(q_width, ffn) * sizeof(bf16),
      logits * c.vocab * sizeof(float),
      logits * greedy_parts(c.vocab) * sizeof(GreedyPart),
      logits * sizeof(std::int32_t),
      kept_bytes(kept_.last - kept_.first),
  };
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += device_aligned(size);
  KVLANE_ASSIGN(memory_, device_.allocate(total));
  KVLANE_ASSIGN(host_logits_, device_.allocate_host(sizes[5]));
  KVLANE_ASSIGN(host_best_, device_.allocate_host(sizes[7]));
  Cutter cutter(memory_.get());
  residual_ = reinterpret_cast<float*>(cutter.take<std::byte>(sizes[0]));
  normed_ = cutter.take<std::byte>(sizes[1]);
  product_ = reinterpret_cast<float*>(cutter.take<std::byte>(sizes[2]));
  q_ = cutter.take<std::byte>(sizes[3]);
  wide_ = cutter.take<std::byte>(sizes[4]);
  logits_ = reinterpret_cast<float*>(cutter.take<std::byte>(sizes[5]));
  parts_ = reinterpret_cast<GreedyPart*>(cutter.take<std::byte>(sizes[6]));
  best_ = reinterpret_cast<std::int32_t*>(cutter.take<std::byte>(sizes[7]));
  kept_rows_ = cutter.take<std::byte>(sizes[8]);
  return {};
}

Status DeviceForward::grow(Growing& memory, std::size_t bytes, bool on_host) {
  if (bytes <= memory.bytes) return {};
  // Contexts grow by a block at a time: not each of them a new buffer.
  const std::size_t wanted = bytes + bytes / 2;
  memory = {};
  graphs_.clear();  // they may have the old address
  KVLANE_ASSIGN(memory.memory, on_host ? device_.allocate_host(wanted) : device_.allocate(wanted));
  memory.bytes = wanted;
  return {};
}

Status DeviceForward::run(std::span<const ForwardSpan> spans, const PassHooks& hooks) {
  if (hooks.on_input || hooks.on_queries || hooks.on_normed || hooks.before_attention) {
    return unsupported(
        "a pass on a device shows no hidden states but those that it keeps, nor queries, and lets "
        "nobody in before attention");
  }
  KVLANE_TRY(check_kv_layers(hooks, spans, model_.config().layers));
  const TimePoint start = SteadyClock::now();
  times_ = {};
  const bool may_replay = replays_ && !hooks.on_layer && !hooks.kv_layers;
  KVLANE_TRY(arrange(spans, may_replay));
  if (coded_) {
    coded_->begin(pass_.shape().seals, 0, hooks.kv_layers.value_or(model_.config().layers));
  }
  const BlockTable& table = *spans[0].table;
  const Pools pools{&table.rows_pool(), &table.pool()};
  const bool whole = may_replay && pass_.decodes_only();
  Status done = await_readers();
  if (done.ok()) done = upload();
  if (done.ok()) done = whole ? compute_or_replay(pools) : compute(pools, hooks);
  if (done.ok() && whole && hooks.on_kept && kept_.first < kept_.last) {
    const auto computed = device_.mark();
    done = computed.status();
    if (done.ok()) show_kept(hooks.on_kept, kept_.first, kept_.last - kept_.first, *computed);
  }
  if (done.ok()) done = fetch_results();
  // Also after an error: what is in line reads our buffers.
  const Status finished = device_.finish();
  times_.total = seconds_since(start);
  KVLANE_TRY(done);
  KVLANE_TRY(finished);
  if (coded_) KVLANE_TRY(coded_->check(pass_.sealed_blocks()));
  for (const ForwardSpan& span : spans) {
    span.table->set_tokens(span.table->tokens() + static_cast<int>(span.tokens.size()));
  }
  return {};
}

Status DeviceForward::arrange(std::span<const ForwardSpan> spans, bool may_replay) {
  if (coded_) {
    for (const ForwardSpan& span : spans) {
      KVLANE_TRY(
          span.table->open_rows(span.table->tokens() + static_cast<int>(span.tokens.size())));
    }
    const DevicePass::Coded coded = coded_->reads();
    pass_.arrange(spans, decode_shape_, prefill_shape_, &coded);
  } else {
    pass_.arrange(spans, decode_shape_, prefill_shape_);
  }
  const int rows = pass_.shape().rows;
  if (rows == 0 || rows > rows_max_ || pass_.taken() > logits_max_) {
    return internal_error("a pass of " + std::to_string(rows) + " rows does not fit its buffers");
  }
  if (may_replay && pass_.decodes_only()) {
    pass_.pad(rows_max_, logits_max_, model_.config().heads);
  }
  return {};
}

// One copy for all of them; and memory for what the pass leaves in between.
Status DeviceForward::upload() {
  const std::size_t bytes = pass_.bytes(), states = pass_.shape().states;
  KVLANE_TRY(grow(host_inputs_, bytes, true));
  KVLANE_TRY(grow(device_inputs_, bytes, false));
  KVLANE_TRY(grow(states_,
                  2 * device_aligned(states * sizeof(float)) +
                      states * model_.config().head_dim * sizeof(float),
                  false));
  inputs_ = pass_.write(host_inputs_.memory.get(), device_inputs_.memory.get());
  return device_.copy(device_inputs_.memory.get(), host_inputs_.memory.get(), bytes);
}

// The first pass of a shape is given kernel by kernel, and so finds what cuBLASLt chooses and
// loads; the second is captured.
Status DeviceForward::compute_or_replay(const Pools& pools) {
  if (graphs_pool_ != pools.rows->block(0)) graphs_.clear();
  graphs_pool_ = pools.rows->block(0);
  const auto known = graphs_.find(pass_.shape());
  if (known == graphs_.end()) {
    if (graphs_.size() == kGraphsMax) graphs_.clear();
    graphs_.emplace(pass_.shape(), nullptr);
    return compute(pools, PassHooks());
  }
  if (known->second == nullptr) {
    auto captured = device_.capture([&] { return compute(pools, PassHooks()); });
    if (!captured.ok()) {
      replays_ = false;
      return compute(pools, PassHooks());
    }
    known->second = std::move(*captured);
  }
  return device_.replay(*known->second);
}

Status DeviceForward::compute(const Pools& pools, const PassHooks& hooks) {
  const ModelConfig& c = model_.config();
  KVLANE_TRY(device_.embed({.table = model_.embedding(),
                            .tokens = inputs_.tokens,
                            .rows = pass_.shape().rows,
                            .hidden = c.hidden,
                            .residual = residual_}));
  const int computed = hooks.kv_layers.value_or(c.layers);
  for (int layer = 0; layer < computed; ++layer) {
    KVLANE_TRY(project_qkv(pools, layer, hooks));
    if (hooks.kv_layers && layer + 1 == computed) break;
    KVLANE_TRY(attention(pools, layer));
    KVLANE_TRY(ffn(model_.layers()[layer]));
  }
  return pass_.shape().take == 0 ? Status() : project_logits();
}

NormRows DeviceForward::norm_of(const float* weight, int rows) const {
  const ModelConfig& c = model_.config();
  return {.residual = residual_,
          .add = nullptr,
          .take = nullptr,
          .weight = weight,
          .eps = c.norm_eps,
          .rows = rows,
          .n = c.hidden,
          .out = normed_};
}

// Behind it K and V of the layer are in the cache.
Status DeviceForward::project_qkv(const Pools& pools, int index, const PassHooks& hooks) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layers()[index];
  NormRows norm = norm_of(layer.attention_norm, pass_.shape().rows);
  norm.out = normed_of(index);
  KVLANE_TRY(device_.norm(norm));
  KVLANE_TRY(device_.multiply({.weights = layer.qkv,
                               .x = norm.out,
                               .y = product_,
                               .rows = pass_.shape().rows,
                               .n = (c.heads + 2 * c.kv_heads) * c.head_dim,
                               .k = c.hidden,
                               .add = false}));
  KVLANE_TRY(write_rows(pools, index));
  // Later rows of this very pass read what is sealed here.
  if (coded_) KVLANE_TRY(coded_->seal(layer_of(pools, index), inputs_.seals));
  const bool shows = hooks.on_kept && kept_.has(index);
  if (!shows && !hooks.on_layer) return {};
  KVLANE_ASSIGN(const std::shared_ptr<const DeviceMark> written, device_.mark());
  if (hooks.on_layer) hooks.on_layer(index, written);
  if (shows) show_kept(hooks.on_kept, index, 1, written);
  return {};
}

std::byte* DeviceForward::normed_of(int layer) const {
  if (!kept_.has(layer)) return normed_;
  return kept_rows_ + kept_bytes(layer - kept_.first);
}

void DeviceForward::show_kept(const PassHooks::OnKept& on_kept, int layer, int layers,
                              std::shared_ptr<const DeviceMark> there) {
  auto read = on_kept(
      {layer, layers, normed_of(layer), kept_bytes(1), pass_.first_rows(), std::move(there)});
  // A lane is in order: the last mark is behind all others.
  if (read != nullptr) read_ = std::move(read);
}

// Before anything is written over what was kept.
Status DeviceForward::await_readers() {
  if (read_ == nullptr) return {};
  KVLANE_TRY(device_.wait(*read_));
  read_.reset();
  return {};
}

Status DeviceForward::attention(const Pools& pools, int index) {
  const ModelConfig& c = model_.config();
  if (coded_) KVLANE_TRY(coded_->prepare(q_, pass_.shape().rows, scale_));
  if (pass_.shape().decoding > 0) KVLANE_TRY(decode(pools, index));
  if (!pass_.decodes_only()) KVLANE_TRY(prefill(pools, index));
  // Into the residual stream.
  return device_.multiply({.weights = model_.layers()[index].attention_out,
                           .x = wide_,
                           .y = residual_,
                           .rows = pass_.shape().rows,
                           .n = c.hidden,
                           .k = c.heads * c.head_dim,
                           .add = true});
}

Status DeviceForward::write_rows(const Pools& pools, int index) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layers()[index];
  return device_.write_qkv({.product = product_,
                            .q_norm = layer.q_norm,
                            .k_norm = layer.k_norm,
                            .eps = c.norm_eps,
                            .angles = model_.angles(),
                            .positions = inputs_.positions,
                            .sequences = inputs_.sequences,
                            .tables = inputs_.tables,
                            .table_stride = pass_.shape().table_stride,
                            .rows = pass_.shape().rows,
                            .heads = c.heads,
                            .kv_heads = c.kv_heads,
                            .head_dim = c.head_dim,
                            .q = q_,
                            .slabs = pools.rows->slab_memory(0, index),
                            .block_bytes = pools.rows->block_bytes(),
                            .rotations = coded_ ? coded_->rotations(index) : nullptr});
}

DeviceCodedPass::Layer DeviceForward::layer_of(const Pools& pools, int index) const {
  return {.index = index,
          .rows = pools.rows->slab_memory(0, index),
          .rows_block_bytes = pools.rows->block_bytes(),
          .sealed = pools.sealed->slab_memory(0, index),
          .sealed_block_bytes = pools.sealed->block_bytes()};
}

Status DeviceForward::decode(const Pools& pools, int index) {
  const ModelConfig& c = model_.config();
  const std::size_t states = pass_.shape().states;
  Cutter cutter(states_.memory.get());
  const DecodeBatch batch{.tables = inputs_.tables,
                          .table_stride = pass_.shape().table_stride,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .slabs = pools.rows->slab_memory(0, index),
                          .block_bytes = pools.rows->block_bytes(),
                          .q = q_,
                          .scale = scale_,
                          .max = cutter.take<float>(states),
                          .sum = cutter.take<float>(states),
                          .out = cutter.take<float>(states * c.head_dim)};
  if (coded_) {
    KVLANE_TRY(coded_->attend(layer_of(pools, index), batch, pass_.shape(), inputs_));
  }
  KVLANE_TRY(device_.attend(batch, inputs_.decode_units, pass_.shape().decode_units));
  return device_.merge({.first_state = inputs_.first_state,
                        .sequences = pass_.shape().decoding,
                        .heads = c.heads,
                        .head_dim = c.head_dim,
                        .max = batch.max,
                        .sum = batch.sum,
                        .out = batch.out,
                        .result_f32 = nullptr,
                        .result_bf16 = wide_,
                        .total_max = nullptr,
                        .total_sum = nullptr,
                        .total_out = nullptr});
}

Status DeviceForward::prefill(const Pools& pools, int index) {
  const ModelConfig& c = model_.config();
  // Of the sequences behind those that decode.
  const std::size_t first = std::size_t(pass_.shape().decoding) * pass_.shape().table_stride;
  const PrefillBatch batch{.tables = inputs_.tables + first,
                           .table_stride = pass_.shape().table_stride,
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .slabs = pools.rows->slab_memory(0, index),
                           .block_bytes = pools.rows->block_bytes(),
                           .q = q_,
                           .scale = scale_,
                           .out = wide_};
  if (coded_) {
    return coded_->attend(layer_of(pools, index), batch, pass_.shape(), inputs_);
  }
  return device_.attend(batch, inputs_.prefill_units, pass_.shape().prefill_units);
}

Status DeviceForward::ffn(const DeviceLayer& layer) {
  const ModelConfig& c = model_.config();
  KVLANE_TRY(device_.norm(norm_of(layer.ffn_norm, pass_.shape().rows)));
  KVLANE_TRY(device_.multiply({.weights = layer.ffn_in,
                               .x = normed_,
                               .y = product_,
                               .rows = pass_.shape().rows,
                               .n = 2 * c.ffn,
                               .k = c.hidden,
                               .add = false}));
  KVLANE_TRY(
      device_.silu({.gate_up = product_, .rows = pass_.shape().rows, .ffn = c.ffn, .out = wide_}));
  return device_.multiply({.weights = layer.ffn_out,
                           .x = wide_,
                           .y = residual_,
                           .rows = pass_.shape().rows,
                           .n = c.hidden,
                           .k = c.ffn,
                           .add = true});
}

Status DeviceForward::project_logits() {
  const ModelConfig& c = model_.config();
  const int rows = pass_.shape().take;
  NormRows norm = norm_of(model_.final_norm(), rows);
  norm.take = inputs_.take;
  KVLANE_TRY(device_.norm(norm));
  KVLANE_TRY(device_.multiply({.weights = model_.head(),
                               .x = normed_,
                               .y = logits_,
                               .rows = rows,
                               .n = c.vocab,
                               .k = c.hidden,
                               .add = false}));
  if (!pass_.shape().chooses) return {};
  return device_.choose({.logits = logits_,
                         .rows = rows,
                         .vocab = c.vocab,
                         .parts = parts_,
                         .tokens = best_,
                         .logprobs = nullptr});
}

// Logits of those who want them; of the others a token each; and whether all could be sealed.
Status DeviceForward::fetch_results() {
  if (coded_) KVLANE_TRY(coded_->fetch_verdicts());
  if (pass_.logits() > 0) {
    KVLANE_TRY(device_.copy(host_logits_.get(), reinterpret_cast<const std::byte*>(logits_),
                            std::size_t(pass_.logits()) * model_.config().vocab * sizeof(float)));
  }
  if (!pass_.shape().chooses) return {};
  return device_.copy(host_best_.get(), reinterpret_cast<const std::byte*>(best_),
                      pass_.taken() * sizeof(std::int32_t));
}

std::span<float> DeviceForward::logits(int index) const {
  const std::size_t vocab = model_.config().vocab;
  return {reinterpret_cast<float*>(host_logits_.get()) + pass_.place(index) * vocab, vocab};
}

std::optional<std::int32_t> DeviceForward::best(int index) const {
  const int place = pass_.place(index);
  if (place < pass_.logits()) return std::nullopt;
  return reinterpret_cast<const std::int32_t*>(host_best_.get())[place];
}

}  // namespace kvlane
