// Looks for values that no format can code.
// SPDX-License-Identifier: Apache-2.0
#include "quant/slab_rows.h"

#include <cmath>
#include <cstdio>
#include <string>

namespace kvlane {

Status check_rows_are_finite(const KvShape& shape, SlabPlace place, const std::uint16_t* rows) {
  const std::size_t count = shape.slab_bytes() / sizeof(std::uint16_t);
  // The highest bit is set by a carry out of an exponent of ones: operations that compilers take
  // eight values at a time for.
  std::uint16_t carries = 0;
  for (std::size_t i = 0; i < count; ++i) {
    carries = static_cast<std::uint16_t>(carries | ((rows[i] & 0x7F80U) + 0x80U));
  }
  if ((carries & 0x8000U) == 0) return {};
  std::size_t at = 0;
  while (is_finite_bf16(rows[at])) ++at;
  const std::size_t in_page = at % shape.page_elements();
  const bool is_key = in_page < shape.page_plane_elements();
  const std::size_t token = is_key ? in_page / shape.head_dim
                                   : (in_page - shape.page_plane_elements()) / shape.widths().v;
  const char* const value = (rows[at] & 0x7F) != 0 ? "nan" : rows[at] == 0x7F80 ? "inf" : "-inf";
  return invalid_argument(std::string(is_key ? "K" : "V") + " of layer " +
                          std::to_string(place.layer) + ", KV head " +
                          std::to_string(place.kv_head + at / shape.page_elements()) + ", token " +
                          std::to_string(place.position + token) + " is " + value +
                          ": KV formats take finite numbers only");
}

Status row_beyond(bool is_key, const KvShape& shape, SlabPlace place, int kv_head,
                  const float* values, float limit) {
  std::size_t at = 0;
  while (std::abs(values[at]) <= limit) ++at;
  char text[160];
  const int length = std::snprintf(
      text, sizeof(text),
      "%c of layer %d, KV head %d, token %d is %g, beyond %g, the largest that "
      "scales of this KV format hold",
      is_key ? 'K' : 'V', place.layer, place.kv_head + kv_head,
      place.position + static_cast<int>(at / (is_key ? shape.head_dim : shape.widths().v)),
      double{values[at]}, double{limit});
  return invalid_argument({text, static_cast<std::size_t>(length)});
}

}  // namespace kvlane
