// The part of a worker's KV cache that one rank has: memory that the head orders about.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cache/block_pool.h"
#include "cpu/memory.h"
#include "model/part.h"
#include "quant/kv_format.h"
#include "ranks/letter.h"

namespace kvlane {

// Thread-compatible but for slab(), which any thread may call; what a place holds is for the head
// to keep in order.
class RankCache {
 public:
  // `format`, of this part's KV heads in all layers or of all heads, outlives this: rows have the
  // heads that it has. Null: rows of 16 bits.
  static Result<RankCache> create(const ModelConfig& whole, const ModelPart& part,
                                  const KvFormat* format, const Plan& plan);

  // A table over these blocks. kCorrupt where a block is none.
  Result<BlockTable> table(const PassSpan& span);
  // One of a coded cache or of rows whose slabs come from elsewhere: complete blocks, of which the
  // first `first` are there. Blocks that are gone have no number. kCorrupt as above.
  Result<BlockTable> arriving_table(std::span<const BlockId> blocks, int gone, int first);
  const BlockPool& blocks() const { return pool_; }
  // A rank's part of a slab, or all of it where the format has all heads. `layer` is the model's.
  // kCorrupt where there is no such place.
  Result<std::span<std::byte>> slab(const BlockPlace& place, int layer) const;
  Status copy(const BlockPlace& to, const BlockPlace& from);

 private:
  RankCache(BlockPool pool, std::unique_ptr<BlockPool> rows, PageBuffer arena, Share layers,
            KvWindow window)
      : pool_(std::move(pool)),
        rows_(std::move(rows)),
        arena_(std::move(arena)),
        layers_(layers),
        window_(window) {}
  Result<std::span<std::byte>> block(const BlockPlace& place) const;

  BlockPool pool_;
  std::unique_ptr<BlockPool> rows_;  // of a coded cache
  PageBuffer arena_;
  Share layers_;
  KvWindow window_;
};

}  // namespace kvlane
