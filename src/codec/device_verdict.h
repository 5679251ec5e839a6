// What a kernel says of a body. The sentence for a person comes from the scalar codec, which is
// then asked about it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvlane {

enum class DeviceVerdict : std::uint32_t { kDecoded = 0, kCorrupt = 1, kUnsupported = 2 };

}  // namespace kvlane
