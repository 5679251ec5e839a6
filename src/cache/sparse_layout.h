// Where rows of a sparse cache lie in blocks (cache/sparse_cache.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "format/head_widths.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "quant/kv_format.h"

namespace kvlane {

// Pages of slots are as large as the pages of the cache's blocks, so blocks of the same pool hold
// them: K[64][k], then V[64][v] in BF16, with the channels that the format keeps of each head.
class SparseLayout {
 public:
  struct Page {
    std::size_t offset;  // in a slab
    HeadWidths widths;
  };

  // For caches in 16 bits, where `format` is null, or of what `zack` keeps of them, whose blocks
  // are sealed ones; `format` then outlives this. kUnsupported: slabs of other formats have no
  // place for single tokens.
  static Result<SparseLayout> create(const KvShape& shape, const KvFormat* format);

  const KvShape& shape() const { return shape_; }
  const KvFormat* format() const { return format_; }
  const Page& page(int layer, int kv_head) const {
    return pages_[std::size_t(layer) * shape_.kv_heads + kv_head];
  }
  // Of K and V of one token, in all heads and layers.
  std::size_t token_bytes() const { return token_bytes_; }

 private:
  SparseLayout(const KvShape& shape, const KvFormat* format) : shape_(shape), format_(format) {}

  KvShape shape_;
  const KvFormat* format_;
  std::vector<Page> pages_;  // [layers][kv_heads]
  std::size_t token_bytes_ = 0;
};

}  // namespace kvlane
