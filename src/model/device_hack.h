// Passes over a cache of codes on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/device_codes.h"

namespace kvlane {

// As DeviceCodedPass::create().
Result<std::unique_ptr<DeviceCodedPass>> create_hack_pass(const DeviceCodes& codes,
                                                          const ModelConfig& config,
                                                          Accelerator& device, int rows_max);

}  // namespace kvlane
