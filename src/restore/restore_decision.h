// How much of a stored sequence is worth bringing back, and from what: a pure function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/machine_profile.h"
#include "plan/profile_factors.h"
#include "plan/restore_plan.h"

namespace kvlane {

// One layer of what the store has of a sequence, in one kind of extents.
struct StoredLayer {
  int blocks = 0;    // in a row, from StoredBlocks::first on
  double bytes = 0;  // read for a block
  std::string form;  // as profiles call it: "hidden", "kv+splitzip", or a KV format's name
};

struct StoredBlocks {
  int first = 0;                    // blocks before it are in the cache
  std::vector<StoredLayer> hidden;  // one for each layer
  std::vector<StoredLayer> slabs;   // likewise
  bool from_tokens = true;          // layers can be computed; not where those before are elsewhere
};

struct RestoreDecision {
  int blocks = 0;                      // from StoredBlocks::first on; 0: compute everything
  int recomputed = 0;                  // layers 0 ... recomputed - 1 come from tokens
  std::vector<RestoreSource> sources;  // of all layers; those of recomputed ones mean nothing
  double seconds = 0;                  // expected; 0 without a profile
  RestoreSeconds expected;             // likewise, of each kind of work
  double bytes = 0;                    // read

  friend bool operator==(const RestoreDecision&, const RestoreDecision&) = default;
};

// For a sequence of `tokens` tokens, of which at least one is to be computed. With a profile: what
// takes the least time until all tokens are computed. Without one, null: as many blocks as there
// are, from slabs where they are stored, else from hidden states, else from tokens.
RestoreDecision decide_restore(const MachineProfile* profile, const StoredBlocks& stored,
                               int tokens);

}  // namespace kvlane
