// What most formats have in common when slabs travel: their used bytes come first.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kv_format.h"

#include <cstring>

namespace kvlane {

void KvFormat::pack(const std::byte* slab, std::byte* packed) const {
  std::memcpy(packed, slab, used_bytes(slab));
}

Status KvFormat::unpack(SlabPlace place, ByteView packed, std::byte* slab) const {
  if (packed.empty() || packed.size() > slab_bytes_) {
    return refuse_packed(place, "has " + std::to_string(packed.size()) + " bytes, a slab takes " +
                                    std::to_string(slab_bytes_) + " at most");
  }
  std::memcpy(slab, packed.data(), packed.size());
  std::memset(slab + packed.size(), 0, slab_bytes_ - packed.size());
  if (const std::size_t used = used_bytes(slab); used != packed.size()) {
    return refuse_packed(place, "has " + std::to_string(packed.size()) +
                                    " bytes, by what is in it " + std::to_string(used));
  }
  return {};
}

Status KvFormat::refuse_packed(SlabPlace place, const std::string& why) {
  return corrupt("the sealed slab at position " + std::to_string(place.position) + " of layer " +
                 std::to_string(place.layer) + " " + why);
}

}  // namespace kvlane
