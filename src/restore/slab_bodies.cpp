// As frames have them, in the same order: K first.
// SPDX-License-Identifier: Apache-2.0
#include "restore/slab_bodies.h"

#include <algorithm>
#include <string>

namespace kvlane {
namespace {

PlaneView plane_in(const KvShape& shape, PlanePart part, const std::byte* slab) {
  return {slab + (part == PlanePart::kV ? shape.page_bytes() / 2 : 0), shape.page_bytes()};
}

}  // namespace

void SlabKind::describe(ExtentHead& head) const {
  head.key.kind = ExtentKind::kKv;
  head.format = format_ != nullptr ? format_->slab_name() : element_name(shape_.type);
  head.type = shape_.type;
  head.heads = shape_.kv_heads;
  head.width = shape_.head_dim;
  head.rope_applied = format_ == nullptr || format_->rope_applied();
  head.sealed = format_ != nullptr;
  head.tables = format_ != nullptr ? format_->tables() : 0;
}

bool SlabKind::is_of(const ExtentHead& head) const {
  ExtentHead wanted;
  describe(wanted);
  const bool same = head.key.kind == wanted.key.kind && head.format == wanted.format &&
                    head.type == wanted.type && head.heads == wanted.heads &&
                    head.width == wanted.width && head.rope_applied == wanted.rope_applied &&
                    head.sealed == wanted.sealed && head.tables == wanted.tables &&
                    head.tokens == kBlockTokens;
  return same && head.layer + head.layers() <= shape_.layers && find_codec(head.codec).ok() &&
         (takes_codecs() || head.codec == "none");
}

SlabWriter::SlabWriter(const SlabKind& kind, const Codec& codec,
                       const std::vector<Codebook>& calibrated)
    : kind_(kind),
      codec_(codec),
      // Sealed slabs of values that no codec is asked for are packed as well.
      coded_(kind.format() == nullptr || (kind.takes_codecs() && codec.name() != "none")),
      books_(plane_shape(kind.shape(), kBlockTokens), kind.shape().layers, calibrated) {
  std::size_t bytes = 0;
  if (kind.format() == nullptr) {
    bytes = codec.bound(plane_shape(kind.shape(), kBlockTokens));
  } else if (coded_) {
    planes_.emplace(*kind.format());
    for (int layer = 0; layer < kind.shape().layers; ++layer) {
      bytes = std::max(
          {bytes, codec.bound(planes_->k_shape(layer)), codec.bound(planes_->v_shape(layer))});
    }
  } else {
    bytes = kind.format()->slab_bytes();
  }
  for (auto& body : bodies_) body.resize(bytes);
}

CodedSlab SlabWriter::write(SlabPlace place, const std::byte* slab) {
  const int layer = place.layer;
  const KvFormat* const format = kind_.format();
  if (format == nullptr) {
    const PlaneShape shape = plane_shape(kind_.shape(), kBlockTokens);
    return {encode(layer, PlanePart::kK, shape, plane_in(kind_.shape(), PlanePart::kK, slab)),
            encode(layer, PlanePart::kV, shape, plane_in(kind_.shape(), PlanePart::kV, slab))};
  }
  if (!coded_) {
    format->pack(place, slab, bodies_[0].data());
    return {{bodies_[0].data(), format->used_bytes(place, slab)}, {}};
  }
  planes_->take(layer, slab);
  const PlaneShape k = planes_->k_shape(layer), v = planes_->v_shape(layer);
  return {encode(layer, PlanePart::kK, k, dense_plane(k, planes_->k(layer).data())),
          encode(layer, PlanePart::kV, v, dense_plane(v, planes_->v(layer).data()))};
}

ByteView SlabWriter::encode(int layer, PlanePart part, const PlaneShape& shape,
                            const PlaneView& plane) {
  std::vector<std::byte>& body = bodies_[static_cast<int>(part)];
  const bool takes_book = codec_.name() == kCodebookCodec;
  const Codebook* const book = takes_book ? books_.find(layer, part) : nullptr;
  const ByteView coded(body.data(), codec_.encode(shape, plane, book, body));
  if (takes_book) books_.learn(layer, part, shape, coded, book == nullptr);
  return coded;
}

}  // namespace kvlane
