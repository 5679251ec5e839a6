// Opening a store, and measuring or finding the profile that plans it.
// SPDX-License-Identifier: Apache-2.0
#include "cli/state_store.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "base/file.h"
#include "cli/restore_profile.h"

namespace kvlane {
namespace {

constexpr std::size_t kKeyFileBytesMax = 4096;
// Beside the store, of one run for each length: engines start sooner so.
constexpr const char* kProfileName = "profiles.json";
constexpr int kProfileTokensMax = 4096;

Result<std::shared_ptr<Store>> open_store(const StateFlags& flags, std::size_t draft_bytes) {
  StoreOptions options{
      .create = true, .saving_bytes_max = draft_bytes, .memory_bytes_max = flags.memory};
  for (const std::string& path : flags.directories) {
    options.directories.push_back({path, flags.bytes_max});
  }
  if (!flags.key_file.empty()) {
    KVLANE_ASSIGN(const AesKey key, read_store_key(flags.key_file));
    options.key = key;
  }
  KVLANE_ASSIGN(auto files,
                open_store_files({.devices = static_cast<int>(options.directories.size())}));
  KVLANE_ASSIGN(std::unique_ptr<Store> store, Store::open(options, std::move(files)));
  print_notes(*store);
  return std::shared_ptr<Store>(std::move(store));
}

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

Result<AesKey> read_store_key(const std::string& path) {
  KVLANE_ASSIGN(std::string text, read_text_file(path, kKeyFileBytesMax));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  AesKey key{};
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  bool good = text.size() == 2 * key.size();
  for (std::size_t i = 0; good && i < key.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    key[i] = static_cast<std::byte>(16 * high + low);
  }
  if (!good) return invalid_argument(path + " does not hold 64 lower-case hexadecimal digits");
  return key;
}

void print_notes(const Store& store) {
  for (const std::string& note : store.opening().notes) std::cerr << "kvlane: " << note << '\n';
}

Result<StateOptions> open_state(const StateFlags& flags, const ModelFlags& model_flags,
                                const Model& model, int pass_rows_max) {
  StateOptions state;
  if (flags.directories.empty()) return state;
  KVLANE_TRY(find_codec(flags.codec, model.isa()).status());
  const int layers = model.config().layers;
  const bool planned = flags.form == kAutoForm;
  // What is wrong with the form is told before anything is measured.
  if (!planned) {
    KVLANE_ASSIGN(state.forms, make_state_forms(flags.form, layers, nullptr, 0));
  }
  KVLANE_ASSIGN(state.store, open_store(flags, HiddenRoom::of(model, pass_rows_max).draft_bytes));
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
