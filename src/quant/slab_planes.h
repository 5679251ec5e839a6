// The values of sealed slabs as rows of 16 bits: what lossless codecs make smaller on the wire, for
// formats whose slabs are values and no codes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/head_widths.h"

namespace kvlane {

// A slab's rows are K[64][k], then V[64][v], the channels of all its heads side by side: planes of
// one head. Immutable, thread-safe.
class SlabPlanes {
 public:
  virtual ~SlabPlanes() = default;

  // k and v of a layer.
  virtual HeadWidths widths(int layer) const = 0;
  // Rows and slab do not overlap; the slab has KvFormat::slab_bytes(layer).
  virtual void to_rows(int layer, const std::byte* slab, std::uint16_t* rows) const = 0;
  // The reverse, bit for bit, of any values: all of the slab is written.
  virtual void from_rows(int layer, const std::uint16_t* rows, std::byte* slab) const = 0;
};

}  // namespace kvlane
