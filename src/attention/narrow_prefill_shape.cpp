// What prefill attention over narrow pages on a GPU has kernels for.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_decode_gpu.h"
#include "attention/narrow_prefill_gpu.h"

namespace kvlane {

namespace {

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

Status check_narrow_prefill(const NarrowPrefillBatch& batch, int width_max) {
  KVLANE_TRY(prefill_shape(batch.heads, batch.kv_heads, batch.head_dim).status());
  const HeadWidths widest[] = {{width_max, width_max}};
  KVLANE_TRY(narrow_decode_shape(1, widest, batch.head_dim, 1).status());
  if (aligned(batch.slabs) && aligned(batch.q) && aligned(batch.out) &&
      batch.block_bytes % 16 == 0) {
    return {};
  }
  return invalid_argument(
      "attention over narrow pages on a GPU needs addresses that are multiples of 16");
}

}  // namespace kvlane
