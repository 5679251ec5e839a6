// What `kvlane profile` and `kvlane plan` share: a profile of a model on this machine, from a file
// or measured now.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/restore_profile.h"
#include "cli/command_line.h"
#include "kvlane/status.h"

namespace kvlane {

struct RestoreProfileFlags {
  std::string model;  // directory
  std::string file;   // of profiles; empty: none
  std::vector<std::string> directories;
  std::string kv_format = "bf16";
  std::string kv_tables;  // file; empty: none
  int tokens_max = 4096;
  int repeats = 3;
  int threads = 0;
  std::string cpu = "auto";
  bool force = false;
};

// All but --out or --profile, and --force.
void add_restore_profile_flags(Command& command, RestoreProfileFlags& flags);

struct ObtainedProfile {
  MachineProfile profile;
  bool measured = false;  // now
};

// The profile of the file if it has one of this model, machine and format with all directories,
// and nobody forces another; else it is measured and, where there is a file, written there.
Result<ObtainedProfile> obtain_profile(const RestoreProfileFlags& flags, const Model& model);
// The same of the model that the flags name.
Result<ObtainedProfile> obtain_profile(const RestoreProfileFlags& flags);

}  // namespace kvlane
