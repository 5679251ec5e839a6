// As frames have them, in the same order: K first.
// SPDX-License-Identifier: Apache-2.0
#include "restore/slab_bodies.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace kvlane {

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
                       const std::vector<Codebook>& calibrated, SlabLane lane)
    : kind_(kind),
      codec_(codec),
      // Sealed slabs of values that no codec is asked for are packed as well.
      coded_(kind.format() == nullptr || (kind.takes_codecs() && codec.name() != "none")),
      lane_(std::move(lane)),
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

Status SlabWriter::write(const BlockPool& pool, BlockId block, int index, LayerRun layers,
                         const Take& take) {
  SlabCoder* const coder = kind_.format() == nullptr ? lane_.coder_of(codec_) : nullptr;
  if (coder != nullptr) return write_from_device(*coder, pool, block, layers, take);
  KVLANE_TRY(lane_.begin(pool, block, layers.first, layers.count));
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
    KVLANE_ASSIGN(const std::byte* const slab, lane_.next());
    take(write({layer, index * kBlockTokens}, slab));
  }
  return {};
}

// As many layers in a launch as fit: each has codebooks of its own.
Status SlabWriter::write_from_device(SlabCoder& coder, const BlockPool& pool, BlockId block,
                                     LayerRun layers, const Take& take) {
  const PlaneShape shape = plane_shape(kind_.shape(), kBlockTokens);
  const int last = layers.first + layers.count;
  for (int layer = layers.first; layer < last;) {
    std::vector<DeviceSlab> slabs;
    const int end = std::min(last, layer + coder.slabs_max());
    for (int i = layer; i < end; ++i) {
      slabs.push_back({pool.slab_memory(block, i),
                       kBlockTokens,
                       {book_of(i, PlanePart::kK), book_of(i, PlanePart::kV)}});
    }
    KVLANE_ASSIGN(const std::span<const CodedSlab> coded, coder.encode(codec_, slabs, nullptr));
    for (std::size_t i = 0; i < coded.size(); ++i, ++layer) {
      learn(layer, PlanePart::kK, shape, coded[i].k, slabs[i].books[0] == nullptr);
      learn(layer, PlanePart::kV, shape, coded[i].v, slabs[i].books[1] == nullptr);
      take(coded[i]);
    }
  }
  return {};
}

CodedSlab SlabWriter::write(SlabPlace place, const std::byte* slab) {
  const int layer = place.layer;
  const KvFormat* const format = kind_.format();
  if (format == nullptr) {
    const PlaneShape shape = plane_shape(kind_.shape(), kBlockTokens);
    return {encode(layer, PlanePart::kK, shape, plane_in(slab, kind_.shape(), PlanePart::kK)),
            encode(layer, PlanePart::kV, shape, plane_in(slab, kind_.shape(), PlanePart::kV))};
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
  const Codebook* const book = book_of(layer, part);
  const ByteView coded(body.data(), codec_.encode(shape, plane, book, body));
  learn(layer, part, shape, coded, book == nullptr);
  return coded;
}

// Null: the plane is counted, or its codec takes none.
const Codebook* SlabWriter::book_of(int layer, PlanePart part) const {
  return codec_.name() == kCodebookCodec ? books_.find(layer, part) : nullptr;
}

void SlabWriter::learn(int layer, PlanePart part, const PlaneShape& shape, ByteView coded,
                       bool counted) {
  if (codec_.name() == kCodebookCodec) books_.learn(layer, part, shape, coded, counted);
}

}  // namespace kvlane
