// What an engine is told of its state store.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kvlane/status.h"
#include "restore/state_forms.h"

namespace kvlane {

class Store;
struct MachineProfile;

struct StateOptions {
  std::shared_ptr<Store> store;  // null: nothing is saved here
  bool on_ranks = false;         // those that compute the model have stores of their own
  StateForms forms;              // what is saved; brought back is what is there
  std::string codec = "none";    // of slabs that take one
  // Of this machine's CPU; null: see decide_restore(). A device has none, nor have ranks.
  std::shared_ptr<const MachineProfile> profile;
  std::size_t saving_bytes = std::size_t{256} << 20;  // of blocks that wait to be saved
  // On a device: of its memory, for what comes there past the host (Store::direct_storage()); and
  // whether the engine shall not begin without it.
  std::size_t direct_bytes = std::size_t{64} << 20;
  bool needs_direct = false;
  // Told at the engine's start, where it begins without although the store has a direct way: why.
  std::function<void(const Status&)> on_no_direct = {};
  // Where saving is behind, computing waits for it. Otherwise nobody waits, and some is not saved.
  bool saves_all = false;

  bool saves() const { return store != nullptr || on_ranks; }
  // What names of blocks and handshakes say behind the KV format where K and V may have come back
  // from hidden states in 8 bits, else nothing: others would take them for exact.
  std::string lossy_mark() const {
    const bool lossy =
        saves() && forms.saves_hidden() && forms.hidden == HiddenFormat::Values::kInt8;
    return lossy ? "+hidden:int8" : "";
  }
};

}  // namespace kvlane
