// Where tests find the golden frames.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "base/test_paths.h"

namespace kvlane::frame_fixture {

inline const std::filesystem::path kGoldenFrames =
    std::filesystem::path(kSourceDir) / "tests/golden/frame";

}  // namespace kvlane::frame_fixture
