// Asks the format for widths and places.
// SPDX-License-Identifier: Apache-2.0
#include "cache/sparse_layout.h"

#include "quant/zack.h"

namespace kvlane {

Result<SparseLayout> SparseLayout::create(const KvShape& shape, const KvFormat* format) {
  const auto* const zack = dynamic_cast<const ZackFormat*>(format);
  if (format != nullptr && zack == nullptr) {
    return unsupported("tokens can be evicted from caches in bf16 and zack, not in '" +
                       format->name() + "', whose slabs have no room for single tokens");
  }
  if (zack != nullptr && zack->window() != KvWindow{}) {
    return unsupported("tokens cannot be evicted from a cache with a window, as '" +
                       format->name() + "' has");
  }
  SparseLayout layout(shape, format);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      if (zack != nullptr && zack->codes(layer, head) != nullptr) {
        return unsupported(
            "tokens can be evicted from what zack keeps in 16 bits, not from codes "
            "as in '" +
            format->name() + "'");
      }
      const Page page = zack == nullptr
                            ? Page{shape.page_bytes() * head, shape.widths()}
                            : Page{zack->page_place(layer, head).offset, zack->widths(layer, head)};
      layout.pages_.push_back(page);
      layout.token_bytes_ += sizeof(std::uint16_t) * (page.widths.k + page.widths.v);
    }
  }
  return layout;
}

}  // namespace kvlane
