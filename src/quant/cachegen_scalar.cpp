// CacheGen's values from symbols in plain C++.
// SPDX-License-Identifier: Apache-2.0
#include "base/bf16.h"
#include "quant/cachegen_slab.h"

namespace kvlane::cachegen {

void open_plane_scalar(const PlaneValues& plane) {
  const bool code = plane.form == Form::kCode;
  for (int token = 0; token < kBlockTokens; ++token) {
    const std::uint8_t* const in = plane.symbols + token * plane.stride;
    const std::uint8_t* const anchor =
        plane.symbols + (token - token % kAnchorEvery) * plane.stride;
    std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
    for (int i = 0; i < plane.head_dim; ++i) {
      float value = 0;
      if (code) {
        value = value_of(in[i], plane.middle, plane.largest[token]);
      } else {
        value = value_of(anchor[i], kAnchorMiddle, plane.largest[token / kAnchorEvery]);
        if (!is_anchor(token)) value += delta_of(in[i], plane.steps[i]);
      }
      out[i] = to_bf16(value).bits;
    }
  }
}

}  // namespace kvlane::cachegen
