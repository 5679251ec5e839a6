// The forward pass over a text, keeping what passes by.
// SPDX-License-Identifier: Apache-2.0
#include "bench/captured_planes.h"

#include <string>

#include "base/bf16.h"
#include "calib/sequences.h"

namespace kvlane {
namespace {

// Of whole blocks.
void append_kv(const BlockTable& table, CapturedPlanes& planes) {
  const BlockPool& pool = table.pool();
  const KvShape& shape = pool.shape();
  const std::size_t page = shape.page_plane_elements();
  for (int layer = 0; layer < shape.layers; ++layer) {
    auto& all_k = planes.values(layer, Tensor::kK);
    auto& all_v = planes.values(layer, Tensor::kV);
    for (int block = 0; block < table.tokens() / kBlockTokens; ++block) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::uint16_t* const k = pool.page(table.id(block), layer, head);
        const std::uint16_t* const v = k + page;
        all_k.insert(all_k.end(), k, k + page);
        all_v.insert(all_v.end(), v, v + page);
      }
    }
  }
}

}  // namespace

std::string_view tensor_name(Tensor tensor) {
  switch (tensor) {
    case Tensor::kK: return "k";
    case Tensor::kV: return "v";
    case Tensor::kHidden: return "hidden";
  }
  return "unknown";
}

Result<CapturedPlanes> capture_planes(
    const Model& model, std::span<const std::int32_t> tokens,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  const ModelConfig& config = model.config();
  tokens = tokens.first(tokens.size() / kBlockTokens * kBlockTokens);
  if (tokens.empty() || calibration_sequence(model) < kBlockTokens) {
    return invalid_argument("a block has " + std::to_string(kBlockTokens) +
                            " tokens: there are too few to fill one");
  }
  CapturedPlanes planes(config.layers, plane_shape(config.kv_shape(), kBlockTokens),
                        {.kv_heads = 1, .rows = kBlockTokens, .head_dim = config.hidden});
  const auto append_hidden = [&](int layer, std::span<const float> rows) {
    auto& all = planes.values(layer, Tensor::kHidden);
    for (const float value : rows) all.push_back(to_bf16(value).bits);
  };
  const auto end_sequence = [&](const BlockTable& table) {
    append_kv(table, planes);
    // Rows behind the last whole block.
    const std::size_t left = table.tokens() % kBlockTokens * std::size_t(config.hidden);
    for (int layer = 0; layer < config.layers; ++layer) {
      auto& hidden = planes.values(layer, Tensor::kHidden);
      hidden.resize(hidden.size() - left);
    }
  };
  KVLANE_TRY(run_sequences(model, tokens, end_sequence, progress, {.on_input = append_hidden}));
  return planes;
}

}  // namespace kvlane
