// What devices are told of a KV format that they have kernels for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/device_codes.h"
#include "quant/kv_format.h"

namespace kvlane {

// kUnsupported for formats without kernels.
Result<DeviceFormat> device_codes(const KvFormat& format);

}  // namespace kvlane
