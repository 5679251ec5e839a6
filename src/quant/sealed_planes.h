// The planes of a sealed slab's values on their way to a codec or from one: their shapes, and a
// buffer for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "codec/codec.h"
#include "quant/kv_format.h"
#include "quant/slab_planes.h"

namespace kvlane {

// Thread-compatible.
class SealedPlanes {
 public:
  // Of slabs of `format`, which has planes and outlives this.
  explicit SealedPlanes(const KvFormat& format) : format_(format), planes_(*format.planes()) {
    std::size_t most = 0;
    for (int layer = 0; layer < format.shape().layers; ++layer) {
      most = std::max(most, k_shape(layer).elements() + v_shape(layer).elements());
    }
    rows_.resize(most);
  }

  PlaneShape k_shape(int layer) const { return shape_of(planes_.widths(layer).k); }
  PlaneShape v_shape(int layer) const { return shape_of(planes_.widths(layer).v); }

  // Fills the buffer with the values of a slab, and the reverse.
  void take(int layer, const std::byte* slab) { planes_.to_rows(layer, slab, rows_.data()); }
  void give(int layer, std::byte* slab) const { planes_.from_rows(layer, rows_.data(), slab); }

  // The buffer's, without gaps.
  std::span<std::byte> k(int layer) { return bytes().first(k_shape(layer).bytes()); }
  std::span<std::byte> v(int layer) {
    return bytes().subspan(k_shape(layer).bytes(), v_shape(layer).bytes());
  }

 private:
  PlaneShape shape_of(int channels) const {
    return {format_.shape().type, 1, kBlockTokens, channels};
  }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(rows_)); }

  const KvFormat& format_;
  const SlabPlanes& planes_;
  std::vector<std::uint16_t> rows_;
};

}  // namespace kvlane
