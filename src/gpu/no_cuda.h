// Why everything about GPUs fails in a build without CUDA. For X_no_cuda.cpp files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvlane/status.h"

namespace kvlane::gpu {

inline Status no_cuda() {
  return unsupported("this build of kvlane has no CUDA: configure it with -DKVLANE_CUDA=ON");
}

}  // namespace kvlane::gpu
