// Puts a pass together on the host, copies what it needs, and gives the device its kernels.
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

namespace kvlane {
namespace {

constexpr std::size_t kAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Cuts a buffer into parts.
class Cutter {
 public:
  explicit Cutter(std::byte* begin) : begin_(begin) {}
  template <class T>
  T* take(std::size_t count) {
    return reinterpret_cast<T*>(begin_ + std::exchange(at_, at_ + aligned(count * sizeof(T))));
  }

 private:
  std::byte* begin_;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::unique_ptr<DeviceForward>> DeviceForward::create(const DeviceModel& model,
                                                             Accelerator& device, int rows_max,
                                                             int logits_max) {
  std::unique_ptr<DeviceForward> forward(new DeviceForward(model, device, rows_max, logits_max));
  KVLANE_TRY(forward->allocate());
  return forward;
}

Status DeviceForward::allocate() {
  const ModelConfig& c = model_.config();
  KVLANE_ASSIGN(decode_shape_,
                decode_shape(c.heads, c.kv_heads, c.head_dim, device_.multiprocessors()));
  KVLANE_ASSIGN(prefill_shape_, prefill_shape(c.heads, c.kv_heads, c.head_dim));
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
  };
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += aligned(size);
  KVLANE_ASSIGN(memory_, device_.allocate(total));
  KVLANE_ASSIGN(host_logits_, device_.allocate_host(sizes[5]));
  Cutter cutter(memory_.get());
  residual_ = reinterpret_cast<float*>(cutter.take<std::byte>(sizes[0]));
  normed_ = cutter.take<std::byte>(sizes[1]);
  product_ = reinterpret_cast<float*>(cutter.take<std::byte>(sizes[2]));
  q_ = cutter.take<std::byte>(sizes[3]);
  wide_ = cutter.take<std::byte>(sizes[4]);
  logits_ = reinterpret_cast<float*>(cutter.take<std::byte>(sizes[5]));
  return {};
}

Status DeviceForward::grow(Growing& memory, std::size_t bytes, bool on_host) {
  if (bytes <= memory.bytes) return {};
  // Contexts grow by a block at a time: not each of them a new buffer.
  const std::size_t wanted = bytes + bytes / 2;
  memory = {};
  KVLANE_ASSIGN(memory.memory, on_host ? device_.allocate_host(wanted) : device_.allocate(wanted));
  memory.bytes = wanted;
  return {};
}

Status DeviceForward::run(std::span<const ForwardSpan> spans, const OnLayer& on_layer) {
  const TimePoint start = SteadyClock::now();
  times_ = {};
  KVLANE_TRY(arrange(spans));
  Status done = upload();
  if (done.ok()) done = compute(spans[0].table->pool(), on_layer);
  // Also after an error: what is in line reads our buffers.
  const Status finished = device_.finish();
  times_.total = seconds_since(start);
  KVLANE_TRY(done);
  KVLANE_TRY(finished);
  for (const ForwardSpan& span : spans) {
    span.table->set_tokens(span.table->tokens() + static_cast<int>(span.tokens.size()));
  }
  return {};
}

// Rows, sequences and units of the pass.
Status DeviceForward::arrange(std::span<const ForwardSpan> spans) {
  std::vector<int> last_rows(spans.size());
  std::vector<std::int32_t> decode_tokens;
  std::vector<PrefillSpan> prefill_spans;
  rows_ = 0;
  table_stride_ = 0;
  for (auto* list : {&tokens_, &positions_, &sequences_, &tables_, &take_}) list->clear();
  for (const ForwardSpan& span : spans) {
    const int tokens = span.table->tokens() + static_cast<int>(span.tokens.size());
    table_stride_ = std::max(table_stride_, blocks_for(tokens));
  }
  int sequence = 0;
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const ForwardSpan& span = spans[i];
      const int count = static_cast<int>(span.tokens.size());
      if ((count == 1) != decoding) continue;
      if (decoding) {
        decode_tokens.push_back(span.table->tokens() + 1);
      } else {
        prefill_spans.push_back({span.table->tokens(), count, rows_});
      }
      append_rows(span, sequence++);
      rows_ += count;
      last_rows[i] = rows_ - 1;
    }
  }
  decoding_ = static_cast<int>(decode_tokens.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    for (int back = spans[i].logits - 1; back >= 0; --back) take_.push_back(last_rows[i] - back);
  }
  if (rows_ == 0 || rows_ > rows_max_ || static_cast<int>(take_.size()) > logits_max_) {
    return internal_error("a pass of " + std::to_string(rows_) + " rows does not fit its buffers");
  }
  decode_plan_ = plan_decode(decode_tokens, decode_shape_);
  prefill_units_ = plan_prefill(prefill_spans, prefill_shape_);
  return {};
}

void DeviceForward::append_rows(const ForwardSpan& span, int sequence) {
  const int position = span.table->tokens();
  const int count = static_cast<int>(span.tokens.size());
  tokens_.insert(tokens_.end(), span.tokens.begin(), span.tokens.end());
  for (int i = 0; i < count; ++i) positions_.push_back(position + i);
  sequences_.insert(sequences_.end(), count, sequence);
  const int blocks = blocks_for(position + count);
  for (int i = 0; i < table_stride_; ++i) {
    tables_.push_back(i < blocks ? span.table->id(i) : 0);
  }
}

// One copy for all of them.
Status DeviceForward::upload() {
  std::size_t bytes = 0;
  const auto visit_all = [&](const auto& visit) {
    visit(tokens_, inputs_.tokens);
    visit(positions_, inputs_.positions);
    visit(sequences_, inputs_.sequences);
    visit(tables_, inputs_.tables);
    visit(take_, inputs_.take);
    visit(decode_plan_.units, inputs_.decode_units);
    visit(decode_plan_.first_state, inputs_.first_state);
    visit(prefill_units_, inputs_.prefill_units);
  };
  visit_all([&](const auto& list, auto&) { bytes += aligned(list.size() * sizeof(list[0])); });
  KVLANE_TRY(grow(host_inputs_, bytes, true));
  KVLANE_TRY(grow(device_inputs_, bytes, false));
  std::size_t at = 0;
  visit_all([&](const auto& list, auto& part) {
    const std::size_t size = list.size() * sizeof(list[0]);
    if (size > 0) std::memcpy(host_inputs_.memory.get() + at, list.data(), size);
    part =
        reinterpret_cast<std::remove_reference_t<decltype(part)>>(device_inputs_.memory.get() + at);
    at += aligned(size);
  });
  return device_.copy(device_inputs_.memory.get(), host_inputs_.memory.get(), bytes);
}

Status DeviceForward::compute(const BlockPool& pool, const OnLayer& on_layer) {
  const ModelConfig& c = model_.config();
  KVLANE_TRY(device_.embed({.table = model_.embedding(),
                            .tokens = inputs_.tokens,
                            .rows = rows_,
                            .hidden = c.hidden,
                            .residual = residual_}));
  for (int layer = 0; layer < c.layers; ++layer) {
    KVLANE_TRY(attention(pool, layer, on_layer));
    KVLANE_TRY(ffn(model_.layers()[layer]));
  }
  return take_.empty() ? Status() : project_logits();
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

Status DeviceForward::attention(const BlockPool& pool, int index, const OnLayer& on_layer) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layers()[index];
  const int q_width = c.heads * c.head_dim;
  KVLANE_TRY(device_.norm(norm_of(layer.attention_norm, rows_)));
  KVLANE_TRY(device_.multiply({.weights = layer.qkv,
                               .x = normed_,
                               .y = product_,
                               .rows = rows_,
                               .n = q_width + 2 * c.kv_heads * c.head_dim,
                               .k = c.hidden,
                               .add = false}));
  KVLANE_TRY(device_.write_qkv({.product = product_,
                                .q_norm = layer.q_norm,
                                .k_norm = layer.k_norm,
                                .eps = c.norm_eps,
                                .angles = model_.angles(),
                                .positions = inputs_.positions,
                                .sequences = inputs_.sequences,
                                .tables = inputs_.tables,
                                .table_stride = table_stride_,
                                .rows = rows_,
                                .heads = c.heads,
                                .kv_heads = c.kv_heads,
                                .head_dim = c.head_dim,
                                .q = q_,
                                .slabs = reinterpret_cast<std::byte*>(pool.slab(0, index)),
                                .block_bytes = pool.shape().block_bytes()}));
  if (on_layer) {
    KVLANE_ASSIGN(const std::shared_ptr<const DeviceMark> written, device_.mark());
    on_layer(index, written);
  }
  if (decoding_ > 0) KVLANE_TRY(decode(pool, index));
  if (!prefill_units_.empty()) KVLANE_TRY(prefill(pool, index));
  // Into the residual stream.
  return device_.multiply({.weights = layer.attention_out,
                           .x = wide_,
                           .y = residual_,
                           .rows = rows_,
                           .n = c.hidden,
                           .k = q_width,
                           .add = true});
}

Status DeviceForward::decode(const BlockPool& pool, int index) {
  const ModelConfig& c = model_.config();
  const std::size_t states = decode_plan_.first_state.back();
  KVLANE_TRY(grow(
      states_, 2 * aligned(states * sizeof(float)) + states * c.head_dim * sizeof(float), false));
  Cutter cutter(states_.memory.get());
  const DecodeBatch batch{.tables = inputs_.tables,
                          .table_stride = table_stride_,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .slabs = reinterpret_cast<const std::byte*>(pool.slab(0, index)),
                          .block_bytes = pool.shape().block_bytes(),
                          .q = q_,
                          .scale = scale_,
                          .max = cutter.take<float>(states),
                          .sum = cutter.take<float>(states),
                          .out = cutter.take<float>(states * c.head_dim)};
  KVLANE_TRY(device_.attend(batch, inputs_.decode_units, decode_plan_.units.size()));
  return device_.merge({.first_state = inputs_.first_state,
                        .sequences = decoding_,
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

Status DeviceForward::prefill(const BlockPool& pool, int index) {
  const ModelConfig& c = model_.config();
  const PrefillBatch batch{.tables = inputs_.tables + std::size_t(decoding_) * table_stride_,
                           .table_stride = table_stride_,
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .slabs = reinterpret_cast<const std::byte*>(pool.slab(0, index)),
                           .block_bytes = pool.shape().block_bytes(),
                           .q = q_,
                           .scale = scale_,
                           .out = wide_};
  return device_.attend(batch, inputs_.prefill_units, prefill_units_.size());
}

Status DeviceForward::ffn(const DeviceLayer& layer) {
  const ModelConfig& c = model_.config();
  KVLANE_TRY(device_.norm(norm_of(layer.ffn_norm, rows_)));
  KVLANE_TRY(device_.multiply({.weights = layer.gate_up,
                               .x = normed_,
                               .y = product_,
                               .rows = rows_,
                               .n = 2 * c.ffn,
                               .k = c.hidden,
                               .add = false}));
  KVLANE_TRY(device_.silu({.gate_up = product_, .rows = rows_, .ffn = c.ffn, .out = wide_}));
  return device_.multiply({.weights = layer.down,
                           .x = wide_,
                           .y = residual_,
                           .rows = rows_,
                           .n = c.hidden,
                           .k = c.ffn,
                           .add = true});
}

Status DeviceForward::project_logits() {
  const ModelConfig& c = model_.config();
  const int rows = static_cast<int>(take_.size());
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
  return device_.copy(host_logits_.get(), reinterpret_cast<const std::byte*>(logits_),
                      std::size_t(rows) * c.vocab * sizeof(float));
}

std::span<float> DeviceForward::logits(int index) const {
  const std::size_t vocab = model_.config().vocab;
  return {reinterpret_cast<float*>(host_logits_.get()) + index * vocab, vocab};
}

}  // namespace kvlane
