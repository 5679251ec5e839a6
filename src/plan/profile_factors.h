// What restores teach about a profile: disks and processors are slower beside others' work than
// they were when they were measured, or faster. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/machine_profile.h"
#include "plan/restore_plan.h"

namespace kvlane {

// Seconds that one restore spends on each kind of work, or would. 0: on none of it.
struct RestoreSeconds {
  double recompute = 0;  // computing from tokens
  double project = 0;    // hidden states to K and V
  double decode = 0;     // slabs
  double read = 0;       // while something is being read

  friend bool operator==(const RestoreSeconds&, const RestoreSeconds&) = default;
};

// Of a plan made of these costs.
RestoreSeconds seconds_of(const RestoreCosts& costs, const RestorePlan& plan);

// How much longer each kind of work takes than the profile says.
struct ProfileFactors {
  double recompute = 1;
  double project = 1;
  double decode = 1;
  double read = 1;

  friend bool operator==(const ProfileFactors&, const ProfileFactors&) = default;
};

MachineProfile scaled(MachineProfile profile, const ProfileFactors& factors);

// `expected` by the profile scaled with `factors`. Half of each kind's error is learned at once (of
// its logarithm): one restore that was disturbed does not spoil the next ones. Reading counts only
// where it took most of `seconds`, the restore's duration: whoever waits for buffers reads slowly.
ProfileFactors learned(const ProfileFactors& factors, const RestoreSeconds& expected,
                       const RestoreSeconds& measured, double seconds);

// A little of what was learned is forgotten. For when nothing is restored, so that nothing more
// would be learned.
ProfileFactors relaxed(const ProfileFactors& factors);

}  // namespace kvlane
