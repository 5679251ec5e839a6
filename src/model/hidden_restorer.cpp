// A product, then what the forward pass does with K and V.
// SPDX-License-Identifier: Apache-2.0
#include "model/hidden_restorer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpu/parallel.h"
#include "model/alignment.h"
#include "ops/rows.h"

namespace kvlane {
namespace {

// Rows that one thread takes at a time, and multiplications of a product below which one is faster
// than several.
constexpr int kProjectedGrain = 8;
constexpr double kSerialProductMax = 32e6;

}  // namespace

Result<std::unique_ptr<HiddenRestorer>> HiddenRestorer::create(const Model& model,
                                                               const HiddenFormat& hidden,
                                                               int rows_max,
                                                               const KvFormat* format) {
  if (rows_max <= 0 || rows_max % kBlockTokens != 0) {
    return invalid_argument("hidden states are restored in parts of whole blocks, not of " +
                            std::to_string(rows_max) + " tokens");
  }
  std::unique_ptr<HiddenRestorer> restorer(new HiddenRestorer(model, hidden, rows_max, format));
  KVLANE_TRY(restorer->allocate());
  return restorer;
}

Status HiddenRestorer::allocate() {
  const ModelConfig& config = model_.config();
  const int q_width = config.heads * config.head_dim;
  const int kv_width = 2 * config.kv_heads * config.head_dim;
  int widest = kv_width;
  for (const LayerWeights& layer : model_.layers()) {
    KVLANE_ASSIGN(auto part, layer.qkv->part(q_width, kv_width));
    if (part == nullptr) widest = q_width + kv_width;
    kv_.push_back(std::move(part));
  }
  const std::size_t sizes[] = {
      line_aligned(rows_max_ * hidden_.row_bytes()),
      line_aligned(std::size_t(rows_max_) * widest * sizeof(float)),
      format_ ? rows_max_ / kBlockTokens * config.kv_shape().slab_bytes() : 0,
  };
  KVLANE_ASSIGN(memory_, PageBuffer::allocate(sizes[0] + sizes[1] + sizes[2]));
  normed_ = memory_.data();
  product_ = reinterpret_cast<float*>(normed_ + sizes[0]);
  slabs_ = reinterpret_cast<std::uint16_t*>(normed_ + sizes[0] + sizes[1]);
  return {};
}

Status HiddenRestorer::check(const RestoreSpan& span, int layer) const {
  const int end = span.first + span.count;
  const bool whole_blocks =
      span.first % kBlockTokens == 0 && (end % kBlockTokens == 0 || end == span.tokens);
  if (span.first >= 0 && span.count > 0 && whole_blocks && end <= span.tokens &&
      span.tokens <= model_.context() && layer >= first_layer_ &&
      layer < first_layer_ + model_.config().layers) {
    return {};
  }
  return internal_error("there is nothing to restore in tokens " + std::to_string(span.first) +
                        " to " + std::to_string(end) + " of " + std::to_string(span.tokens) +
                        " in layer " + std::to_string(layer));
}

Status HiddenRestorer::restore(const RestoreSpan& span, int layer,
                               std::span<const ByteView> stored) {
  KVLANE_TRY(check(span, layer));
  std::size_t bytes = 0;
  bool whole = true;
  for (const ByteView piece : stored) {
    bytes += piece.size();
    whole &= piece.size() % hidden_.stored_bytes() == 0;
  }
  if (!whole || bytes != span.count * hidden_.stored_bytes()) {
    return corrupt(std::to_string(bytes) + " bytes are not the hidden states of " +
                   std::to_string(span.count) + " tokens");
  }
  for (int done = 0; done < span.count; done += rows_max_) {
    const RestoreSpan part{span.table, span.tokens, span.first + done,
                           std::min(rows_max_, span.count - done)};
    KVLANE_TRY(decode(stored, done, part.count));
    KVLANE_TRY(project(part, layer));
  }
  return {};
}

// Rows `first` ... `first` + `count` - 1 of all pieces, to `normed_`.
Status HiddenRestorer::decode(std::span<const ByteView> stored, int first, int count) {
  const std::size_t bytes = hidden_.stored_bytes();
  std::byte* to = normed_;
  for (const ByteView piece : stored) {
    const int rows = static_cast<int>(piece.size() / bytes);
    const int taken = std::clamp(rows - first, 0, count);
    KVLANE_TRY(hidden_.decode(piece.subspan((rows - first > 0 ? first : 0) * bytes, taken * bytes),
                              taken, to));
    to += taken * hidden_.row_bytes();
    first = std::max(0, first - rows);
    count -= taken;
  }
  return {};
}

Status HiddenRestorer::restore_embedded(const RestoreSpan& span,
                                        std::span<const std::int32_t> tokens) {
  KVLANE_TRY(check(span, 0));
  const ModelConfig& config = model_.config();
  std::vector<float> row(config.hidden);
  for (int done = 0; done < span.count; done += rows_max_) {
    const RestoreSpan part{span.table, span.tokens, span.first + done,
                           std::min(rows_max_, span.count - done)};
    for (int i = 0; i < part.count; ++i) {
      model_.embed(tokens[done + i], part.first + i, row.data());
      model_.norm(model_.layer(0).attention_norm, row.data(), config.hidden, row.data());
      store_row(row.data(), config.hidden, hidden_type(model_), normed_ + i * hidden_.row_bytes());
    }
    KVLANE_TRY(project(part, 0));
  }
  return {};
}

const Linear& HiddenRestorer::product_of(int layer) const {
  const Linear* const part = kv_[layer - first_layer_].get();
  return part != nullptr ? *part : *model_.layer(layer).qkv;
}

// Of at most rows_max_ tokens, whose rows are in `normed_`.
Status HiddenRestorer::project(const RestoreSpan& span, int layer) {
  const Linear& product = product_of(layer);
  const double work = static_cast<double>(span.count) * product.inputs() * product.outputs();
  const ParallelScope threads(work < kSerialProductMax ? 1 : parallel_threads());
  KVLANE_TRY(product.apply(normed_, product_, span.count));
  write_rows(span, layer);
  return format_ ? seal(span, layer) : Status();
}

// Where rows of a block go: to the table if they stay there, else to memory that is sealed from.
std::uint16_t* HiddenRestorer::slab_rows(const RestoreSpan& span, int layer, int block) const {
  if (span.table->arrives_as_rows(block, span.tokens)) return span.table->rows(block, layer);
  const std::size_t slab = model_.config().kv_shape().slab_bytes() / sizeof(std::uint16_t);
  return slabs_ + (block - span.first / kBlockTokens) * slab;
}

void HiddenRestorer::write_rows(const RestoreSpan& span, int layer) {
  const ModelConfig& config = model_.config();
  const int d = config.head_dim;
  const int width = product_of(layer).outputs();
  const int kv_width = 2 * config.kv_heads * d;
  const std::size_t plane = config.kv_shape().page_plane_elements();
  parallel_ranges(span.count, kProjectedGrain, [&](std::int64_t first, std::int64_t last) {
    float* const keys_all = product_ + (width - kv_width);
    for (std::int64_t row = first; row < last; ++row) {
      key_rows_.place(keys_all + row * width, layer, span.first + static_cast<int>(row));
    }
    key_rows_.turn(keys_all + first * width, layer, static_cast<int>(last - first), width);
    for (std::int64_t row = first; row < last; ++row) {
      const int position = span.first + static_cast<int>(row);
      const float* const keys = keys_all + row * width;
      const float* const values = keys + kv_width / 2;
      std::uint16_t* page = slab_rows(span, layer, position / kBlockTokens);
      for (int h = 0; h < config.kv_heads; ++h, page += 2 * plane) {
        std::uint16_t* const k = page + std::size_t(position) % kBlockTokens * d;
        store_row(keys + h * d, d, ElementType::kBf16, k);
        store_row(values + h * d, d, ElementType::kBf16, k + plane);
      }
    }
  });
}

Status HiddenRestorer::seal(const RestoreSpan& span, int layer) {
  const int first = span.first / kBlockTokens;
  const int complete = (span.first + span.count) / kBlockTokens - first;
  std::vector<Status> sealed(complete);
  parallel_for(complete, [&](std::int64_t i) {
    const int block = first + static_cast<int>(i);
    sealed[i] = format_->seal({layer, block * kBlockTokens}, slab_rows(span, layer, block),
                              span.table->sealed(block, layer));
  });
  for (const Status& status : sealed) KVLANE_TRY(status);
  return {};
}

}  // namespace kvlane
