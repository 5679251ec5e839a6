// The state store of an engine, as the command line says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flags.h"
#include "engine/engine.h"
#include "kvlane/status.h"
#include "model/model.h"

namespace kvlane {

// Opens the store that the flags name, or nothing without one. Form `auto` asks for a profile of
// this machine: the one in --store-profile, or beside the store, or it is measured now and kept
// there. For a model on a device there are no profiles, `auto` is smaller_forms(), and the store
// may read to the device directly, of which standard error tells: it ends before the model. Where
// ranks compute `auto` is the same, and stores are theirs: open_rank_store().
// `engine` has all but its state.
Result<StateOptions> open_state(const StateFlags& flags, const ModelFlags& model_flags,
                                const Model& model, const EngineOptions& engine);

// A rank's own store, in a folder of its layout and number in each of these directories, of which
// it takes its part of the limits.
Result<std::shared_ptr<Store>> open_rank_store(const StateFlags& flags, const Model& model,
                                               int rows_max);

}  // namespace kvlane
