// From the bodies that frames and extents have of slabs to the slabs of a cache (spec/frame.md,
// section 4). Bodies are untrusted. On an error, which is kCorrupt, the slab is garbage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "codec/codec.h"
#include "codec/coded_slab.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "quant/kv_format.h"
#include "quant/sealed_planes.h"

namespace kvlane {

// The first `tokens` rows of 16 bits of a slab. `past_caches`: see PlaneSpan. Thread-safe for
// different slabs.
Status read_rows(const Codec& codec, const KvShape& shape, int tokens, const CodedSlab& coded,
                 std::byte* slab, bool past_caches = false);

// Sealed slabs of one format. Thread-compatible.
class SealedReader {
 public:
  // `format` outlives this.
  explicit SealedReader(const KvFormat& format) : format_(format) {}

  // In codec `none` slabs are packed; others are for formats that have planes.
  Status read(const Codec& codec, SlabPlace place, const CodedSlab& coded, std::byte* slab);

 private:
  const KvFormat& format_;
  std::optional<SealedPlanes> planes_;  // from the first slab on that came in a codec
};

}  // namespace kvlane
