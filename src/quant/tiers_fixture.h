// The tiers that tests hold against the scalar one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cpu/isa.h"

namespace kvlane::tiers_fixture {

// Those beside the scalar one that this processor can run.
inline std::vector<Isa> vector_tiers() {
  std::vector<Isa> supported;
  for (const Isa isa : kAllIsas) {
    if (isa != Isa::kScalar && isa_supported(isa)) supported.push_back(isa);
  }
  return supported;
}

}  // namespace kvlane::tiers_fixture
