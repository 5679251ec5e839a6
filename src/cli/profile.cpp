// `kvlane profile`: what restoring state costs with a model on this machine, measured once.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>
#include <memory>

#include "bench/profile_file.h"
#include "cli/command.h"
#include "cli/restore_profile.h"

namespace kvlane {
namespace {

struct ProfileFlags : RestoreProfileFlags {
  bool json = false;
};

void print_profile_line(const std::string& name, double tokens_per_second, double bytes) {
  char text[80];
  std::snprintf(text, sizeof(text), "%14.4g", tokens_per_second);
  std::cout << "  " << name << std::string(name.size() < 34 ? 34 - name.size() : 1, ' ') << text;
  if (bytes > 0) {
    std::snprintf(text, sizeof(text), "%15.4g", bytes);
    std::cout << text;
  }
  std::cout << '\n';
}

void print_profile(const MachineProfile& profile) {
  std::cout << "machine: " << profile.machine << "\nlayers:  " << profile.layers << ", KV format "
            << profile.kv_format
            << "\n\n  of one layer                            tokens/s  bytes a token\n";
  for (const TimedTokens& point : profile.prefill) {
    print_profile_line("prefill of " + std::to_string(point.tokens), point.tokens / point.seconds,
                       0);
  }
  for (const ProfiledForm& form : profile.forms) {
    print_profile_line("K and V from " + form.name, 1 / form.seconds, form.bytes);
  }
  for (const ProfiledDirectory& directory : profile.directories) {
    std::cout << "  reading " << directory.path << ": " << directory.read_rate / 1e9 << " GB/s\n";
  }
  if (profile.directories.size() > 1) {
    std::cout << "  reading all of them: " << profile.read_rate / 1e9 << " GB/s\n";
  }
}

Status run_profile(const ProfileFlags& flags) {
  KVLANE_ASSIGN(const ObtainedProfile obtained, obtain_profile(flags));
  if (flags.json) {
    std::cout << to_json({obtained.profile});
    return {};
  }
  print_profile(obtained.profile);
  std::cout << (obtained.measured ? "\nwritten to " : "\nmeasured before, from ") << flags.file
            << '\n';
  return {};
}

}  // namespace

void add_profile(Command& app) {
  Command command = app.add_subcommand(
      "profile", "Measure what restoring state costs with a model on this machine");
  command.footer("Example: kvlane profile models/kvlane-tiny --dir /tmp --out /tmp/profiles.json");
  const auto flags = std::make_shared<ProfileFlags>();
  add_restore_profile_flags(command, *flags);
  command
      .add_option("--out", flags->file,
                  "JSON file of profiles: gets this one, and is asked for it before")
      .required();
  command.add_flag("--force", flags->force, "measure although the file has this profile");
  command.add_flag("--json", flags->json, "the profile as JSON instead of a table");
  command.action([flags] { return run_profile(*flags); });
}

}  // namespace kvlane
