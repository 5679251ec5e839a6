// What decode attention's work is cut by.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/decode_gpu.h"

namespace kvlane {

Result<DecodeShape> decode_shape(int heads, int kv_heads, int head_dim, int multiprocessors) {
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || multiprocessors < 1) {
    return invalid_argument("no attention of " + std::to_string(heads) + " heads over " +
                            std::to_string(kv_heads) + " KV heads on " +
                            std::to_string(multiprocessors) + " multiprocessors");
  }
  const DecodeKernelShape* kernel = decode_kernel(heads / kv_heads, head_dim);
  if (kernel == nullptr) {
    return invalid_argument(
        "decode attention on a GPU needs a head_dim that is a multiple of 8 up to " +
        std::to_string(kDecodeHeadDimMax) + ", not " + std::to_string(head_dim));
  }
  return DecodeShape{heads, kv_heads, kernel->tiles * kDecodeColumns,
                     multiprocessors * kernel->blocks};
}

}  // namespace kvlane
