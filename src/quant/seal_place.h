// A block that a kernel seals.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvlane {

// Where rows of a block come from, and where it is sealed; nothing happens where `rows` is
// negative.
struct HackSealPlace {
  std::int32_t rows, sealed;
};

}  // namespace kvlane
