// What prefill attention's work is cut by.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/prefill_gpu.h"

namespace kvlane {

Result<PrefillShape> prefill_shape(int heads, int kv_heads, int head_dim) {
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0) {
    return invalid_argument("no attention of " + std::to_string(heads) + " heads over " +
                            std::to_string(kv_heads) + " KV heads");
  }
  const PrefillKernelShape* kernel = prefill_kernel(head_dim);
  if (kernel == nullptr) {
    return invalid_argument(
        "prefill attention on a GPU needs a head_dim that is a multiple of 8 up to " +
        std::to_string(kPrefillHeadDimMax) + ", not " + std::to_string(head_dim));
  }
  return PrefillShape{heads, kv_heads, kernel->pairs()};
}

}  // namespace kvlane
