// Places of the head's, found in this rank's memory.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_cache.h"

#include <cstring>
#include <utility>
#include <vector>

namespace kvlane {

Result<RankCache> RankCache::create(const ModelConfig& whole, const ModelPart& part,
                                    const KvFormat* format, const Plan& plan) {
  KvShape shape = config_of(whole, part).kv_shape();
  if (format != nullptr) shape.kv_heads = format->shape().kv_heads;
  const Share layers = layers_of(whole, part);
  std::vector<std::size_t> slabs;
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
    slabs.push_back(format == nullptr ? shape.slab_bytes() : format->slab_bytes(layer));
  }
  const SlabSizes sizes(slabs);
  KVLANE_ASSIGN(BlockPool pool,
                BlockPool::create_sealed(shape, sizes, plan.blocks * sizes.block_bytes()));
  pool.set_first_layer(layers.first);
  std::unique_ptr<BlockPool> rows;
  if (format != nullptr) {
    KVLANE_ASSIGN(BlockPool made, BlockPool::create(shape, plan.row_blocks * shape.block_bytes()));
    made.set_first_layer(layers.first);
    rows = std::make_unique<BlockPool>(std::move(made));
  }
  PageBuffer arena;
  if (plan.arena_blocks > 0) {
    KVLANE_ASSIGN(arena, PageBuffer::allocate(plan.arena_blocks * sizes.block_bytes()));
  }
  return RankCache(std::move(pool), std::move(rows), std::move(arena), layers,
                   format == nullptr ? KvWindow{} : format->window());
}

Result<BlockTable> RankCache::table(const PassSpan& span) {
  const bool coded = rows_ != nullptr;
  const std::int64_t tokens = std::int64_t{span.tokens_before} + std::ssize(span.tokens);
  const std::int64_t blocks = std::ssize(span.blocks);
  const int written = span.tokens_before / kBlockTokens;
  bool fits = span.rows.size() == (coded ? span.blocks.size() : 0) &&
              tokens <= blocks * kBlockTokens && span.gone <= written;
  for (int block = span.gone; fits && block < blocks_for(static_cast<int>(tokens)); ++block) {
    fits = span.blocks[block] >= 0 && span.blocks[block] < pool_.blocks_total();
    if (!coded || !fits) continue;
    // Rows that are written, or read as rows, and others that may be there.
    const bool needed = block >= written || window_.reads_rows(block, written);
    fits = span.rows[block] >= (needed ? 0 : -1) && span.rows[block] < rows_->blocks_total();
  }
  if (!fits) return corrupt("a pass names blocks that this rank does not have");
  BlockTable empty = coded ? BlockTable(pool_, *rows_, window_) : BlockTable(pool_);
  return BlockTable::lent(std::move(empty),
                          {span.blocks, span.rows, span.tokens_before, span.sight, span.gone});
}

Result<BlockTable> RankCache::arriving_table(std::span<const BlockId> blocks, int gone, int first) {
  bool fits = gone <= first && first <= std::ssize(blocks);
  for (std::size_t block = gone; fits && block < blocks.size(); ++block) {
    fits = blocks[block] >= 0 && blocks[block] < pool_.blocks_total();
  }
  if (!fits) return corrupt("a restore names blocks that this rank does not have");
  BlockTable empty = rows_ ? BlockTable(pool_, *rows_, window_) : BlockTable(pool_);
  std::vector<BlockId> rows(rows_ ? blocks.size() : 0, BlockId{-1});
  return BlockTable::lent(
      std::move(empty),
      {{blocks.begin(), blocks.end()}, std::move(rows), first * kBlockTokens, 0, gone});
}

Result<std::span<std::byte>> RankCache::block(const BlockPlace& place) const {
  const BlockPool* const pool = place.memory == RankMemory::kRows ? rows_.get() : &pool_;
  if (pool != nullptr && place.block >= 0) {
    const std::size_t bytes = pool->block_bytes();
    const std::size_t at = place.block * bytes;
    if (place.memory == RankMemory::kArena) {
      if (at + bytes <= arena_.bytes()) return std::span(arena_.data() + at, bytes);
    } else if (place.block < pool->blocks_total()) {
      return std::span(pool->block(place.block), bytes);
    }
  }
  return corrupt("the head names a block that this rank does not have");
}

Result<std::span<std::byte>> RankCache::slab(const BlockPlace& place, int layer) const {
  KVLANE_ASSIGN(const std::span<std::byte> whole, block(place));
  const int own = layer - layers_.first;
  if (own < 0 || own >= layers_.count) {
    return corrupt("the head asks for a layer that this rank does not have");
  }
  const BlockPool& pool = place.memory == RankMemory::kRows ? *rows_ : pool_;
  return whole.subspan(pool.slab_sizes().offset(own), pool.slab_bytes(layer));
}

Status RankCache::copy(const BlockPlace& to, const BlockPlace& from) {
  KVLANE_ASSIGN(const std::span<std::byte> target, block(to));
  KVLANE_ASSIGN(const std::span<std::byte> source, block(from));
  if (target.size() != source.size()) return corrupt("the head copies between unlike blocks");
  if (target.data() != source.data()) std::memcpy(target.data(), source.data(), source.size());
  return {};
}

}  // namespace kvlane
