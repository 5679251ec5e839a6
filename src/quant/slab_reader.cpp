// K first, as everywhere.
// SPDX-License-Identifier: Apache-2.0
#include "quant/slab_reader.h"

namespace kvlane {

Status read_rows(const Codec& codec, const KvShape& shape, int tokens, const CodedSlab& coded,
                 std::byte* slab, bool past_caches) {
  const PlaneShape plane = plane_shape(shape, tokens);
  const std::size_t stride = shape.page_bytes();
  KVLANE_TRY(codec.decode(plane, coded.k, PlaneSpan{slab, stride, past_caches}));
  return codec.decode(plane, coded.v, PlaneSpan{slab + stride / 2, stride, past_caches});
}

Status SealedReader::read(const Codec& codec, SlabPlace place, const CodedSlab& coded,
                          std::byte* slab) {
  if (codec.name() == "none") return format_.unpack(place, coded.k, slab);
  if (!planes_) planes_.emplace(format_);
  const int layer = place.layer;
  KVLANE_TRY(codec.decode(planes_->k_shape(layer), coded.k, planes_->k(layer)));
  KVLANE_TRY(codec.decode(planes_->v_shape(layer), coded.v, planes_->v(layer)));
  planes_->give(layer, slab);
  return {};
}

}  // namespace kvlane
