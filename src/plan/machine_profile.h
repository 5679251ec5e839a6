// What restoring costs with one model on one machine, measured (bench/restore_profile.h) and kept
// in a file (bench/profile_file.h): what plans are made from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "format/shape.h"
#include "plan/restore_cost.h"

namespace kvlane {

// So many tokens of a layer are read, or computed, as one: what overlap is made of.
inline constexpr int kRestorePieceTokens = 512;

// A form in which layers can be stored.
struct ProfiledForm {
  std::string name;  // "hidden", "hidden:int8", "kv", "kv+splitzip", or a KV format's
  RestoreSource source = RestoreSource::kSlabs;
  double bytes = 0;    // a token of a layer; the mean of layers
  double seconds = 0;  // likewise: to compute K and V in the cache from what was read
};

struct ProfiledDirectory {
  std::string path;
  double read_rate = 0;  // bytes a second
};

struct MachineProfile {
  ModelIdentity model{};
  std::string machine;    // processor, threads, memory, kernels
  std::string kv_format;  // of the cache
  int layers = 0;
  std::vector<TimedTokens> prefill;  // a layer
  std::vector<TimedTokens> project;  // likewise, as far as K and V, from tokens for the first one
  std::vector<ProfiledForm> forms;
  std::vector<ProfiledDirectory> directories;
  double read_rate = 0;  // of all directories at once; 0 without any
};

// What the planner chooses from for a sequence of `tokens` tokens when so many bytes a second are
// read; `read_rate` is more than 0.
RestoreCosts restore_costs(const MachineProfile& profile, int tokens, double read_rate);

}  // namespace kvlane
