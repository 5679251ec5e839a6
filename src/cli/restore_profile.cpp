// A cache of measurements.
// SPDX-License-Identifier: Apache-2.0
#include "cli/restore_profile.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/file.h"
#include "bench/figures.h"
#include "bench/profile_file.h"
#include "calib/kv_tables_file.h"
#include "cli/progress.h"
#include "cpu/parallel.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

// Of a file that is not there: none.
Result<std::vector<MachineProfile>> read_profiles(const std::string& path) {
  const auto text = read_text_file(path, kProfileFileBytesMax);
  if (!text.ok() && text.status().code() == Code::kNotFound) return std::vector<MachineProfile>();
  if (!text.ok()) return text.status();
  auto profiles = parse_profile_file(*text);
  if (!profiles.ok()) return profiles.status().with_context(path);
  return profiles;
}

bool has_directories(const MachineProfile& profile, const std::vector<std::string>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& path) {
    return std::any_of(profile.directories.begin(), profile.directories.end(),
                       [&](const ProfiledDirectory& known) { return known.path == path; });
  });
}

Result<MachineProfile> measure_profile(const RestoreProfileFlags& flags, const Model& model) {
  KVLANE_ASSIGN(const KvTables tables,
                load_kv_tables(kv_tables_files(flags.model, flags.kv_tables), model.identity()));
  KVLANE_ASSIGN(const auto format,
                make_kv_format(flags.kv_format, {.shape = model.config().kv_shape(),
                                                 .rope = &model.rope(),
                                                 .tables = &tables,
                                                 .isa = model.isa()}));
  ProfileOptions options;
  options.tokens_max = flags.tokens_max;
  options.repeats = flags.repeats;
  options.directories.assign(flags.directories.begin(), flags.directories.end());
  Progress progress("profile");
  options.progress = [&progress](std::string_view what) { progress.show(what); };
  return measure_restore_profile(model, format.get(), options);
}

}  // namespace

void add_restore_profile_flags(Command& command, RestoreProfileFlags& flags) {
  command.add_option("DIR,--model", flags.model, "Hugging Face model directory").required();
  command.add_option("--dir", flags.directories,
                     "directory whose files would hold state: its read rate is measured; several "
                     "are measured together, too");
  command
      .add_option("--kv-format", flags.kv_format,
                  "KV format of the cache: " + std::string(kv_format_names()))
      .capture_default_str();
  command.add_option("--kv-tables", flags.kv_tables, "file of tables that the KV format asks for");
  command
      .add_option("--tokens-max", flags.tokens_max,
                  "longest prompt that is measured; longer ones are estimated from it")
      .check(range(64, 1 << 20))
      .capture_default_str();
  command.add_option("--repeats", flags.repeats, "medians are over so many runs")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_option("--threads", flags.threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  command.add_option("--cpu", flags.cpu, "kernels: auto, scalar, avx2, avx512, avx512_bf16")
      .capture_default_str();
}

Result<ObtainedProfile> obtain_profile(const RestoreProfileFlags& flags) {
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  std::unique_ptr<Model> model;
  {
    Progress progress("loading " + flags.model);
    KVLANE_ASSIGN(model, Model::load(flags.model, {.isa = isa, .progress = progress.counter()}));
  }
  return obtain_profile(flags, *model);
}

Result<ObtainedProfile> obtain_profile(const RestoreProfileFlags& flags, const Model& model) {
  std::vector<MachineProfile> profiles;
  if (!flags.file.empty()) {
    KVLANE_ASSIGN(profiles, read_profiles(flags.file));
  }
  const std::string machine =
      describe_machine(parallel_threads()) + ", kernels " + std::string(isa_name(model.isa()));
  MachineProfile* const known = find_profile(profiles, model.identity(), machine, flags.kv_format);
  if (known != nullptr && !flags.force && has_directories(*known, flags.directories)) {
    return ObtainedProfile{*known, false};
  }
  KVLANE_ASSIGN(MachineProfile profile, measure_profile(flags, model));
  profile.machine = machine;
  profile.kv_format = flags.kv_format;
  if (!flags.file.empty()) {
    if (known != nullptr) {
      *known = profile;
    } else {
      profiles.push_back(profile);
    }
    const std::string text = to_json(profiles);
    KVLANE_TRY(write_file(flags.file, as_byte_view(text)));
  }
  return ObtainedProfile{std::move(profile), true};
}

}  // namespace kvlane
