// Where the parts of a `cachegen` slab lie, and its values from its symbols.
//
//   u32 end[kv_heads]       where each page ends in the slab; the first begins behind the scales
//   u16 k_scale[scales]     BF16: the largest magnitude of each token (form=paper: of each anchor)
//   u16 v_scale[scales]
//   pages                   a run of lanes: K, then V; or, as long as that would be, their symbols
//                           without coding
//   zeros up to slab_bytes()
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "quant/cachegen_symbols.h"

namespace kvlane::cachegen {

constexpr int scales_of(Form form) { return form == Form::kCode ? kBlockTokens : kAnchors; }

constexpr std::size_t header_bytes(Form form, int kv_heads) {
  return sizeof(std::uint32_t) * kv_heads + 2 * sizeof(std::uint16_t) * scales_of(form);
}

// What turns a plane's symbols into rows.
struct PlaneValues {
  Form form;
  int middle;                   // form=code
  const float* steps;           // [head_dim] of this head, form=paper
  const std::uint8_t* symbols;  // [64][stride], any
  std::size_t stride;           // a multiple of 16, at least head_dim
  const float* largest;         // [scales_of(form)], finite
  int head_dim;
  std::uint16_t* rows;  // [64][head_dim], BF16
};

using OpenPlane = void (*)(const PlaneValues& plane);
void open_plane_scalar(const PlaneValues& plane);
void open_plane_avx2(const PlaneValues& plane);
void open_plane_avx512(const PlaneValues& plane);

inline OpenPlane open_plane_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return open_plane_avx512;
    if (isa >= Isa::kAvx2) return open_plane_avx2;
  }
  return open_plane_scalar;
}

}  // namespace kvlane::cachegen
