// Costs from a profile.
// SPDX-License-Identifier: Apache-2.0
#include "plan/machine_profile.h"

namespace kvlane {

RestoreCosts restore_costs(const MachineProfile& profile, int tokens, double read_rate) {
  const RestoreProfile layer{profile.prefill, profile.project, read_rate};
  RestoreCosts costs = restore_costs(layer, profile.layers, tokens);
  for (const ProfiledForm& form : profile.forms) {
    costs.forms.push_back(uniform_form(layer, profile.layers, form.name, form.source,
                                       form.bytes * tokens, form.seconds * tokens));
  }
  costs.pieces = (tokens + kRestorePieceTokens - 1) / kRestorePieceTokens;
  return costs;
}

}  // namespace kvlane
