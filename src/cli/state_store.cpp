// Opening a store, and measuring or finding the profile that plans it.
// SPDX-License-Identifier: Apache-2.0
#include "cli/state_store.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/opened_store.h"
#include "cli/restore_profile.h"
#include "quant/heads_together.h"
#include "restore/hidden_room.h"

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

void say_no_direct(const Status& why) {
  std::cerr << "kvlane: stored slabs go through the host: " << why.message() << '\n';
}

// From disks to the model's device, past the host's memory; null where that is not to be, or
// cannot.
Result<std::shared_ptr<gpu::DirectStorage>> open_direct(const StateFlags& flags,
                                                        const Model& model) {
  const bool needed = flags.direct == "on";
  Accelerator* const device = model.device();
  if (device == nullptr && needed) {
    return invalid_argument("--store-direct on is for models on a device, and this one is not");
  }
  if (!flags.key_file.empty() && needed) {
    return invalid_argument("--store-direct on: what --store-key encrypts passes through the host");
  }
  if (device == nullptr || flags.direct == "off" || !flags.key_file.empty()) {
    return std::shared_ptr<gpu::DirectStorage>();
  }
  auto storage = gpu::DirectStorage::open([device] { return device->use_on_this_thread(); });
  if (storage.ok() || needed) return storage;
  say_no_direct(storage.status());
  return std::shared_ptr<gpu::DirectStorage>();
}

// Which directories are read directly. `needed`: all of them, or an error.
Status try_direct(gpu::DirectStorage& storage, const std::vector<std::string>& directories,
                  bool needed) {
  for (const std::string& directory : directories) {
    const Status status = storage.try_directory(directory);
    if (status.ok()) {
      std::cerr << "kvlane: stored slabs without a codec go from " << directory
                << " to the device directly, by " << storage.description() << '\n';
    } else if (needed) {
      return status;
    } else {
      say_no_direct(status);
    }
  }
  return {};
}

Status check_on_ranks(const StateFlags& flags) {
  if (!flags.profile.empty()) {
    return invalid_argument(
        "--store-profile has what one process takes, and this model is computed by several");
  }
  if (flags.direct == "on") {
    return invalid_argument("--store-direct on is for models on a device, and this one is not");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Store>> open_rank_store(const StateFlags& flags, const Model& model,
                                               int rows_max) {
  const ModelPart& part = model.part();
  const int count = part.stages * part.ranks;
  const std::string own = "tp" + std::to_string(part.ranks) + "-pp" + std::to_string(part.stages) +
                          "-rank" + std::to_string(part.stage * part.ranks + part.rank);
  std::vector<std::string> directories;
  for (const std::string& directory : flags.directories) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::path(directory) / own;
    std::filesystem::create_directories(path, error);
    if (error) return unavailable("cannot make " + path.string() + ": " + error.message());
    directories.push_back(path.string());
  }
  const int layers = stored_hidden_of(model.whole_config(), part).count;
  const HiddenRoom room = HiddenRoom::of(model, rows_max, layers);
  KVLANE_ASSIGN(std::shared_ptr<Store> store,
                open_store({directories, flags.bytes_max / count, flags.key_file},
                           {.create = true,
                            .saving_bytes_max = room.draft_bytes,
                            .memory_bytes_max = flags.memory / count}));
  return store;
}

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
  const bool on_ranks = engine.ranks != nullptr;
  if (on_ranks) KVLANE_TRY(check_on_ranks(flags));
  const bool planned = flags.form == kAutoForm && !on_device && !on_ranks;
  // What is wrong with the form is told before anything is measured.
  if (flags.form != kAutoForm) {
    KVLANE_ASSIGN(state.forms, make_state_forms(flags.form, layers, nullptr, 0));
  } else if (on_ranks && engine.kv_format && codes_heads_together(*engine.kv_format)) {
    KVLANE_ASSIGN(state.forms, make_state_forms("kv", layers, nullptr, 0));
  } else if (!planned) {
    state.forms = smaller_forms(model, engine.kv_format.get());
  }
  if (on_ranks) {
    state.on_ranks = true;
    state.codec = flags.codec;
    return state;
  }
  const HiddenRoom room = HiddenRoom::of(model, engine.rows_max(), layers);
  KVLANE_ASSIGN(const auto direct, open_direct(flags, model));
  KVLANE_ASSIGN(state.store,
                open_store({flags.directories, flags.bytes_max, flags.key_file, direct},
                           {.create = true,
                            .saving_bytes_max = room.draft_bytes,
                            .memory_bytes_max = flags.memory}));
  state.codec = flags.codec;
  state.needs_direct = flags.direct == "on";
  state.on_no_direct = say_no_direct;
  if (direct != nullptr) KVLANE_TRY(try_direct(*direct, flags.directories, state.needs_direct));
  if (!planned && flags.profile.empty()) return state;
  KVLANE_ASSIGN(state.profile, profile_of(flags, model_flags, model));
  if (planned) {
    KVLANE_ASSIGN(state.forms,
                  make_state_forms(flags.form, layers, state.profile.get(), model.context()));
  }
  return state;
}

}  // namespace kvlane
