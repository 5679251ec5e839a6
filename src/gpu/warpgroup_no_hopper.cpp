// Products of warpgroups in builds without code for sm_90a.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/warpgroup_gpu.h"

namespace kvlane::gpu {

Result<bool> has_warpgroups(int) { return false; }

Status multiply_rows_on_gpu(const WarpgroupTask&, int, const Stream&) {
  return unsupported("this program has no code for sm_90a");
}

}  // namespace kvlane::gpu
