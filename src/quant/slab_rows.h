// The rows of a slab as formats read them before they seal it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "format/shape.h"
#include "kvlane/status.h"
#include "quant/kv_format.h"

namespace kvlane {

// Whether bits are those of a BF16 value that is neither infinite nor NaN.
constexpr bool is_finite_bf16(std::uint16_t bits) { return (bits & 0x7F80) != 0x7F80; }

// The K or V row of one token and head: [head_dim] values within `rows` as KvFormat::seal() gets
// them.
inline const std::uint16_t* slab_row(const KvShape& shape, const std::uint16_t* rows, int head,
                                     bool is_key, int token) {
  return rows + head * shape.page_elements() + (is_key ? 0 : shape.page_plane_elements()) +
         std::size_t(token) * (is_key ? shape.head_dim : shape.widths().v);
}

// kInvalidArgument that names layer and token (its position in the sequence) of the first value
// that is not finite.
Status check_rows_are_finite(const KvShape& shape, SlabPlace place, const std::uint16_t* rows);

// The error for a head's K or V in which a magnitude is above `limit`: values[64][channels].
Status row_beyond(bool is_key, const KvShape& shape, SlabPlace place, int kv_head,
                  const float* values, float limit);

}  // namespace kvlane
