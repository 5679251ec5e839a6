// A GPU as the device of a forward pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "model/accelerator.h"

namespace kvlane {

// On a stream of its own. kUnsupported in a build without CUDA; kUnavailable where there is no such
// device, or no cuBLASLt.
Result<std::unique_ptr<Accelerator>> gpu_accelerator(int device);

}  // namespace kvlane
