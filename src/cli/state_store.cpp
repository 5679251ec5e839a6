// Opening a store, and measuring or finding the profile that plans it.
// SPDX-License-Identifier: Apache-2.0
#include "cli/state_store.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "cli/opened_store.h"
#include "cli/restore_profile.h"

namespace kvlane {
namespace {

// Beside the store, of one run for each length: engines start sooner so.
constexpr const char* kProfileName = "profiles.json";
constexpr int kProfileTokensMax = 4096;

Result<std::shared_ptr<const MachineProfile>> profile_of(const StateFlags& flags,
                                                         const ModelFlags& model_flags,
                                                         const Model& model) {
  RestoreProfileFlags wanted;
  wanted.model = model_flags.directory;
  wanted.file = flags.profile.empty()
                    ? (std::filesystem::path(flags.directories.front()) / kProfileName).string()
                    : flags.profile;
  wanted.directories = flags.directories;
  wanted.kv_format = model_flags.kv_format;
  wanted.kv_tables = model_flags.kv_tables;
  wanted.tokens_max = std::min(kProfileTokensMax, model.context());
  wanted.repeats = 1;
  KVLANE_ASSIGN(ObtainedProfile obtained, obtain_profile(wanted, model));
  return std::make_shared<const MachineProfile>(std::move(obtained.profile));
}

}  // namespace

Result<StateOptions> open_state(const StateFlags& flags, const ModelFlags& model_flags,
                                const Model& model, const EngineOptions& engine) {
  StateOptions state;
  if (flags.directories.empty()) return state;
  KVLANE_TRY(find_codec(flags.codec, model.isa()).status());
  const int layers = model.config().layers;
  const bool on_device = model.device() != nullptr;
  if (on_device && !flags.profile.empty()) {
    return invalid_argument("--store-profile has what a CPU takes, and this model is on a device");
  }
  const bool planned = flags.form == kAutoForm && !on_device;
  // What is wrong with the form is told before anything is measured.
  if (flags.form != kAutoForm) {
    KVLANE_ASSIGN(state.forms, make_state_forms(flags.form, layers, nullptr, 0));
  } else if (on_device) {
    state.forms = smaller_forms(model, engine.kv_format.get());
  }
  const HiddenRoom room = HiddenRoom::of(model, engine.rows_max());
  KVLANE_ASSIGN(state.store, open_store({flags.directories, flags.bytes_max, flags.key_file},
                                        {.create = true,
                                         .saving_bytes_max = room.draft_bytes,
                                         .memory_bytes_max = flags.memory}));
  state.codec = flags.codec;
  if (!planned && flags.profile.empty()) return state;
  KVLANE_ASSIGN(state.profile, profile_of(flags, model_flags, model));
  if (planned) {
    KVLANE_ASSIGN(state.forms,
                  make_state_forms(flags.form, layers, state.profile.get(), model.context()));
  }
  return state;
}

}  // namespace kvlane
