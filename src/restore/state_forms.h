// What a store keeps of the layers of each block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvlane/status.h"
#include "model/hidden_rows.h"

namespace kvlane {

class KvFormat;
class Model;
struct MachineProfile;

// Hidden states of layers hidden_first ... hidden_last - 1, slabs of slabs_first and those behind
// it. A layer in neither is computed from tokens.
struct StateForms {
  HiddenFormat::Values hidden = HiddenFormat::Values::kExact;
  int hidden_first = 0;
  int hidden_last = 0;
  int slabs_first = 0;

  bool saves_hidden() const { return hidden_first < hidden_last; }

  friend bool operator==(const StateForms&, const StateForms&) = default;
};

// From what users write:
//   kv           slabs of all layers
//   hidden       hidden states of all layers but the first, whose input follows from the tokens
//   hidden:int8  the same in 8 bits: K and V come back with an error
//   hidden=N     hidden states of the first N layers but one, slabs of the others
//   auto         what brings `tokens` tokens back in the least time, by a profile of this machine
// kInvalidArgument for anything else, and for auto without a profile.
Result<StateForms> make_state_forms(std::string_view text, int layers,
                                    const MachineProfile* profile, int tokens);

// What `auto` is where there is no profile, on devices: hidden states of all layers but the first
// if they have fewer bytes than slabs of the cache in `format`, null for 16 bits, have without a
// codec; else slabs of all layers.
StateForms smaller_forms(const Model& model, const KvFormat* format);

inline constexpr const char* kAutoForm = "auto";
inline constexpr const char* kStateFormNames = "kv, hidden, hidden:int8, hidden=N, auto";

}  // namespace kvlane
