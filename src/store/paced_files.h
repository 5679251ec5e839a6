// Files of a slower device: the same bytes, no sooner than a disk of a given speed would have them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/clock.h"
#include "store/files.h"

namespace kvlane {

struct DevicePace {
  double read_bytes_per_second = 0;  // of each device; 0: as fast as it is
  double write_bytes_per_second = 0;
  Seconds latency{0};  // of each request, beside its bytes; those of several requests overlap
};

// Passes requests on and holds their completion back until a device of that pace, which takes one
// after the other, is done with them. `devices` as in FileOptions.
std::unique_ptr<StoreFiles> paced_files(std::unique_ptr<StoreFiles> files, const DevicePace& pace,
                                        int devices);

}  // namespace kvlane
