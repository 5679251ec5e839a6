// Slabs of `zack` without codes, as planes of rows and back (spec/slab_zack.md, section 5).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "quant/slab_planes.h"

namespace kvlane {

class ZackPlanes final : public SlabPlanes {
 public:
  // heads: [layers][kv_heads], all even.
  ZackPlanes(int kv_heads, std::vector<HeadWidths> heads);

  HeadWidths widths(int layer) const override;
  void to_rows(int layer, const std::byte* slab, std::uint16_t* rows) const override;
  void from_rows(int layer, const std::uint16_t* rows, std::byte* slab) const override;

 private:
  std::span<const HeadWidths> heads(int layer) const {
    return std::span(heads_).subspan(std::size_t(layer) * kv_heads_, kv_heads_);
  }

  std::size_t kv_heads_;
  std::vector<HeadWidths> heads_;
};

}  // namespace kvlane
