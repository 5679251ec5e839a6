// Slabs as parts of extents: bodies of frames (spec/store.md, section 5; spec/frame.md, section 4).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/block_pool.h"
#include "codec/codec.h"
#include "codec/coded_slab.h"
#include "codec/moving_codebooks.h"
#include "cpu/isa.h"
#include "format/extent.h"
#include "model/slab_lane.h"
#include "quant/kv_format.h"
#include "quant/sealed_planes.h"
#include "restore/layer_runs.h"

namespace kvlane {

// What all slabs of a cache have in common, in memory and in the store: rows of 16 bits, or sealed
// in a format. Immutable, thread-safe.
class SlabKind {
 public:
  // `format`, null for rows, outlives this.
  SlabKind(const KvShape& shape, const KvFormat* format) : shape_(shape), format_(format) {}

  const KvShape& shape() const { return shape_; }
  const KvFormat* format() const { return format_; }
  std::size_t slab_bytes(int layer) const {
    return format_ != nullptr ? format_->slab_bytes(layer) : shape_.slab_bytes();
  }
  // Whether a codec can do anything with them: slabs of codes are stored packed.
  bool takes_codecs() const { return format_ == nullptr || format_->planes() != nullptr; }

  // Fills the fields of an extent of kind 1 that say what its slabs are.
  void describe(ExtentHead& head) const;
  // Whether an extent's slabs are of this cache, in a codec that is known here.
  bool is_of(const ExtentHead& head) const;

 private:
  const KvShape shape_;
  const KvFormat* const format_;
};

// Encodes slabs for the store. Thread-compatible.
class SlabWriter {
 public:
  // `codec`, which is asked for slabs that take one, and `kind` outlive this. `calibrated`: see
  // MovingCodebooks. `lane`: to the blocks.
  SlabWriter(const SlabKind& kind, const Codec& codec, const std::vector<Codebook>& calibrated,
             SlabLane lane = {});

  // Of what write() gives: as extents name it.
  std::string_view codec_name() const { return coded_ ? codec_.name() : "none"; }

  // Shows slabs of a complete block, the index-th of its sequence, layer by layer; each until the
  // next. An error is a device's.
  using Take = std::function<void(const CodedSlab&)>;
  Status write(const BlockPool& pool, BlockId block, int index, LayerRun layers, const Take& take);

 private:
  Status write_from_device(SlabCoder& coder, const BlockPool& pool, BlockId block, LayerRun layers,
                           const Take& take);
  CodedSlab write(SlabPlace place, const std::byte* slab);
  const Codebook* book_of(int layer, PlanePart part) const;
  void learn(int layer, PlanePart part, const PlaneShape& shape, ByteView coded, bool counted);
  ByteView encode(int layer, PlanePart part, const PlaneShape& shape, const PlaneView& plane);

  const SlabKind& kind_;
  const Codec& codec_;
  const bool coded_;  // else packed, or rows as they are
  SlabLane lane_;
  MovingCodebooks books_;
  std::optional<SealedPlanes> planes_;
  std::vector<std::byte> bodies_[2];
};

}  // namespace kvlane
