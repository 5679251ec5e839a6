// What prefill attention on codes is cut by: what prefill attention over rows is, whose units it
// shares.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/hack_prefill_gpu.h"

namespace kvlane {

Result<PrefillShape> hack_prefill_shape(const HackKind& kind, int heads, int kv_heads,
                                        int head_dim) {
  KVLANE_TRY(check_hack_kind(kind));
  KVLANE_ASSIGN(const PrefillShape shape, prefill_shape(heads, kv_heads, head_dim));
  if (head_dim % hack::kHeadDimStep != 0) {
    return invalid_argument(
        "attention on codes on a GPU needs a head_dim that is a multiple of 16, not " +
        std::to_string(head_dim));
  }
  return shape;
}

}  // namespace kvlane
