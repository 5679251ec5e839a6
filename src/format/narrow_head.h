// A KV head in slabs of narrow pages (spec/slab_zack.md), as device code wants it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvlane {

// Where its page begins in a slab, and what it keeps.
struct NarrowHead {
  std::int32_t page;  // bytes
  std::int32_t k, v;  // widths: multiples of 16 up to head_dim
};

}  // namespace kvlane
