// Sequences cut by tokens instead of layers: what HCache compares its partition with (section
// 6.3.2). An ablation; a pure function of a profile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/machine_profile.h"

namespace kvlane {

// In every layer some tokens come from hidden states. The others are either the first ones and
// computed, or the last ones and read as K and V ("kv").
struct TokenSplit {
  bool recomputes = false;
  int tokens = 0;      // of the sequence's first part: computed, or from hidden states
  double seconds = 0;  // expected until all of them are there

  int hidden_tokens(int all) const { return recomputes ? all - tokens : tokens; }
};

// The fastest of the splits of `tokens` tokens at multiples of `step`; both parts may be empty. The
// profile has the forms "hidden" and "kv" and a rate at which disks are read.
TokenSplit best_token_split(const MachineProfile& profile, int tokens, int step);

}  // namespace kvlane
