// Paths that the build knows.
// SPDX-License-Identifier: Apache-2.0
#include "base/test_paths.h"

namespace kvlane {

const char* const kSourceDir = KVLANE_SOURCE_DIR;
const char* const kFakeCufile = KVLANE_FAKE_CUFILE;

}  // namespace kvlane
