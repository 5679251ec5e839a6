// The tiers that tests run on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cpu/isa.h"

namespace kvlane::tiers_fixture {

// Those that this processor can run, the scalar one first.
inline std::vector<Isa> tiers() {
  std::vector<Isa> supported;
  for (const Isa isa : kAllIsas) {
    if (isa_supported(isa)) supported.push_back(isa);
  }
  return supported;
}

// Those beside the scalar one.
inline std::vector<Isa> vector_tiers() {
  std::vector<Isa> supported = tiers();
  supported.erase(supported.begin());
  return supported;
}

}  // namespace kvlane::tiers_fixture
