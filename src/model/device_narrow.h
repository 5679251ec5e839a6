// Passes over a cache of narrow pages on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/device_codes.h"

namespace kvlane {

// As DeviceCodedPass::create(). Waits until the device has rotations and places of pages.
Result<std::unique_ptr<DeviceCodedPass>> create_narrow_pass(const DeviceNarrow& narrow,
                                                            const ModelConfig& config,
                                                            Accelerator& device, int rows_max);

}  // namespace kvlane
