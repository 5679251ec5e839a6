// What formats have in common when slabs travel.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kv_format.h"

#include <cstring>

namespace kvlane {

void KvFormat::own_page(SlabPlace /*place*/, const std::uint16_t* rows, int kv_head, int /*tokens*/,
                        std::uint16_t* page) const {
  std::memcpy(page, rows + kv_head * (shape_.page_bytes() / sizeof(*rows)), shape_.page_bytes());
}

void KvFormat::pack_front(SlabPlace place, const std::byte* slab, std::byte* packed) const {
  std::memcpy(packed, slab, used_bytes(place, slab));
}

Status KvFormat::unpack_front(SlabPlace place, ByteView packed, std::byte* slab) const {
  const std::size_t bytes = slab_bytes(place.layer);
  if (packed.empty() || packed.size() > bytes) {
    return refuse_packed(place, "has " + std::to_string(packed.size()) + " bytes, a slab takes " +
                                    std::to_string(bytes) + " at most");
  }
  std::memcpy(slab, packed.data(), packed.size());
  std::memset(slab + packed.size(), 0, bytes - packed.size());
  return check_packed_bytes(place, packed, used_bytes(place, slab));
}

Status KvFormat::check_packed_bytes(SlabPlace place, ByteView packed, std::size_t expected) const {
  if (packed.size() == expected) return {};
  return refuse_packed(place, "has " + std::to_string(packed.size()) + " bytes, in format " +
                                  slab_name_ + " it has " + std::to_string(expected));
}

Status KvFormat::refuse_packed(SlabPlace place, const std::string& why) {
  return corrupt("the sealed slab at position " + std::to_string(place.position) + " of layer " +
                 std::to_string(place.layer) + " " + why);
}

Status check_all_heads(std::string_view name, const KvFormatContext& context) {
  if (context.has_all_heads()) return {};
  return unsupported("KV format '" + std::string(name) +
                     "' codes all KV heads of a layer together, so ranks cannot share them out");
}

}  // namespace kvlane
