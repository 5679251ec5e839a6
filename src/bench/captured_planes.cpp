// The forward pass over a text, keeping what passes by.
// SPDX-License-Identifier: Apache-2.0
#include "bench/captured_planes.h"

#include <algorithm>
#include <string>

#include "base/bf16.h"
#include "model/forward.h"

namespace kvlane {
namespace {

constexpr std::size_t kPassTokens = 256;  // computed at once
constexpr std::size_t kSequenceTokensMax = 4096;

void append_kv(const BlockTable& table, CapturedPlanes& planes) {
  const BlockPool& pool = table.pool();
  const KvShape& shape = pool.shape();
  const std::size_t page = shape.page_plane_elements();
  for (int layer = 0; layer < shape.layers; ++layer) {
    auto& all_k = planes.values(layer, Tensor::kK);
    auto& all_v = planes.values(layer, Tensor::kV);
    for (int block = 0; block < table.blocks(); ++block) {
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
  const KvShape kv = config.kv_shape();
  const std::size_t length =
      std::min<std::size_t>(model.context(), kSequenceTokensMax) / kBlockTokens * kBlockTokens;
  tokens = tokens.first(tokens.size() / kBlockTokens * kBlockTokens);
  if (tokens.empty() || length == 0) {
    return invalid_argument("a block has " + std::to_string(kBlockTokens) +
                            " tokens: there are too few to fill one");
  }
  CapturedPlanes planes(config.layers, plane_shape(kv, kBlockTokens),
                        {.kv_heads = 1, .rows = kBlockTokens, .head_dim = config.hidden});
  const auto append_hidden = [&](int layer, std::span<const float> rows) {
    auto& all = planes.values(layer, Tensor::kHidden);
    for (const float value : rows) all.push_back(to_bf16(value).bits);
  };
  KVLANE_ASSIGN(BlockPool pool,
                BlockPool::create(kv, blocks_for(static_cast<int>(length)) * kv.block_bytes()));
  KVLANE_ASSIGN(const auto forward, Forward::create(model, static_cast<int>(kPassTokens), 1));
  for (std::size_t start = 0; start < tokens.size(); start += length) {
    const auto sequence = tokens.subspan(start, std::min(length, tokens.size() - start));
    BlockTable table(pool);
    KVLANE_TRY(table.grow(static_cast<int>(sequence.size())));
    for (std::size_t done = 0; done < sequence.size(); done += kPassTokens) {
      const auto part = sequence.subspan(done, std::min(kPassTokens, sequence.size() - done));
      const ForwardSpan span{&table, part, 0};
      KVLANE_TRY(forward->run({&span, 1}, {.on_input = append_hidden}));
      if (progress) progress(start + done + part.size(), tokens.size());
    }
    append_kv(table, planes);
  }
  return planes;
}

}  // namespace kvlane
