// Recording KV, and laying it out in another shape.
// SPDX-License-Identifier: Apache-2.0
#include "bench/recorded_kv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/forward.h"

namespace kvlane {
namespace {

constexpr std::size_t kPassTokens = 256;

// The KV of many sequences of one length, addressed by (token, layer, head).
class Recording {
 public:
  static Result<Recording> make(const Model& model, std::span<const std::int32_t> tokens) {
    const KvShape shape = model.config().kv_shape();
    const std::size_t length = std::min<std::size_t>(model.context(), tokens.size());
    const std::size_t sequences = tokens.size() / length;
    KVLANE_ASSIGN(BlockPool pool,
                  BlockPool::create(shape, sequences * blocks_for(static_cast<int>(length)) *
                                               shape.block_bytes()));
    Recording recording(std::move(pool), static_cast<int>(length));
    KVLANE_ASSIGN(const auto forward, Forward::create(model, static_cast<int>(kPassTokens), 1));
    for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
      BlockTable& table = recording.tables_.emplace_back(*recording.pool_);
      KVLANE_TRY(table.grow(static_cast<int>(length)));
      const auto own = tokens.subspan(sequence * length, length);
      for (std::size_t done = 0; done < length; done += kPassTokens) {
        const ForwardSpan span{&table, own.subspan(done, std::min(kPassTokens, length - done)),
                               false};
        KVLANE_TRY(forward->run({&span, 1}, {}));
      }
    }
    return recording;
  }

  const KvShape& shape() const { return pool_->shape(); }
  std::size_t tokens() const { return tables_.size() * length_; }
  // The K row of a token; its V row is page_plane_elements() behind.
  const std::uint16_t* row(std::size_t token, int layer, int head) const {
    const std::size_t position = token % length_;
    const BlockId block =
        tables_[token / length_ % tables_.size()].id(static_cast<int>(position / kBlockTokens));
    return pool_->page(block, layer, head) + position % kBlockTokens * shape().head_dim;
  }

 private:
  Recording(BlockPool pool, int length)
      : pool_(std::make_unique<BlockPool>(std::move(pool))),
        length_(static_cast<std::size_t>(length)) {}

  std::unique_ptr<BlockPool> pool_;
  std::size_t length_;
  std::vector<BlockTable> tables_;
};

}  // namespace

Status fill_with_recorded_kv(const Model& model, std::span<const std::int32_t> tokens,
                             BlockTable& table, int rows) {
  if (tokens.empty()) return invalid_argument("there are no tokens to compute KV of");
  KVLANE_ASSIGN(const Recording source, Recording::make(model, tokens));
  const KvShape from = source.shape();
  const KvShape to = table.pool().shape();
  const std::size_t v_from = from.page_plane_elements();
  const std::size_t v_to = to.page_plane_elements();
  constexpr std::size_t kShift = 37;  // tokens from one stretch of channels to the next
  for (int row = 0; row < rows; ++row) {
    const BlockId block = table.id(row / kBlockTokens);
    for (int layer = 0; layer < to.layers; ++layer) {
      const int layer_from = layer * from.layers / to.layers;
      for (int channel = 0; channel < to.kv_heads * to.head_dim;) {
        const int stretch = channel / from.head_dim;
        const int channel_from = channel % from.head_dim;
        const int inside = channel % to.head_dim;
        const int count = std::min(from.head_dim - channel_from, to.head_dim - inside);
        const std::size_t token =
            (row + kShift * static_cast<std::size_t>(stretch / from.kv_heads + 8 * layer)) %
            source.tokens();
        const std::uint16_t* const k =
            source.row(token, layer_from, stretch % from.kv_heads) + channel_from;
        std::uint16_t* const target = table.pool().page(block, layer, channel / to.head_dim) +
                                      std::size_t(row % kBlockTokens) * to.head_dim + inside;
        std::memcpy(target, k, count * sizeof *k);
        std::memcpy(target + v_to, k + v_from, count * sizeof *k);
        channel += count;
      }
    }
  }
  return {};
}

}  // namespace kvlane
