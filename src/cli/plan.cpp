// `kvlane plan restore`: where the layers of a sequence would come back from.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/restore_profile.h"
#include "crypto/sha256.h"
#include "plan/restore_plan.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLossyForm = "hidden:int8";  // K and V come back with an error

struct PlanFlags : RestoreProfileFlags {
  int tokens = 0;
  double read_rate = 0;  // GB/s; 0: that of the profile
  bool lossy = false;
  bool json = false;
};

// Null instead of infinite.
Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json plan_json(const RestorePlan& plan, const RestoreCosts& costs, int tokens) {
  Json layers = Json::array();
  int first = 0;
  const auto add = [&](const std::string& from, int count) {
    if (count > 0) layers.push_back({{"from", from}, {"first", first}, {"layers", count}});
    first += count;
  };
  add("tokens", plan.recomputed);
  for (const RestoreRun& each : plan.runs) add(costs.forms[each.form].name, each.layers);
  return {{"layers", std::move(layers)},
          {"seconds", number_or_null(plan.seconds)},
          {"read_seconds", number_or_null(plan.read)},
          {"compute_seconds", number_or_null(plan.compute)},
          {"limited_by", plan.read_bound() ? "reading" : "computing"},
          {"bytes", plan.bytes},
          {"bytes_per_token", plan.bytes / tokens}};
}

void print_plan_json(const PlanFlags& flags, const MachineProfile& profile, double read_rate,
                     const RestoreCosts& costs, const RestoreChoice& choice,
                     const RestorePlan& plan) {
  Json pure = {{"tokens", plan_json(choice.from_tokens, costs, flags.tokens)}};
  for (std::size_t i = 0; i < costs.forms.size(); ++i) {
    pure[costs.forms[i].name] = plan_json(choice.from_forms[i], costs, flags.tokens);
  }
  const Json json = {
      {"model", to_hex(profile.model)}, {"machine", profile.machine},
      {"kv_format", profile.kv_format}, {"tokens", flags.tokens},
      {"read_rate", read_rate},         {"plan", plan_json(plan, costs, flags.tokens)},
      {"pure", std::move(pure)}};
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

void print_plan_line(const std::string& name, const RestorePlan& plan, int tokens) {
  char figures[120];
  std::snprintf(figures, sizeof(figures), "%10.4g %10.4g %10.4g %14.5g   %s", 1e3 * plan.seconds,
                1e3 * plan.read, 1e3 * plan.compute, plan.bytes / tokens,
                plan.read_bound() ? "reading" : "computing");
  std::cout << name << std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') << figures << '\n';
}

void print_plan(const PlanFlags& flags, const MachineProfile& profile, double read_rate,
                const RestoreCosts& costs, const RestoreChoice& choice, const RestorePlan& plan) {
  std::cout << flags.tokens << " tokens in " << profile.layers << " layers, KV format "
            << profile.kv_format << ", reading " << read_rate / 1e9 << " GB/s\n"
            << "on " << profile.machine << "\n\nplan: layers " << describe(plan, costs.forms)
            << "\n\n"
            << "all layers from                   ms       read  computing  bytes a token   "
               "limited by\n";
  print_plan_line("tokens", choice.from_tokens, flags.tokens);
  for (std::size_t i = 0; i < costs.forms.size(); ++i) {
    print_plan_line(costs.forms[i].name, choice.from_forms[i], flags.tokens);
  }
  print_plan_line("the plan", plan, flags.tokens);
}

Status run_plan_restore(const PlanFlags& flags) {
  if (flags.read_rate == 0 && flags.file.empty() && flags.directories.empty()) {
    return invalid_argument(
        "how fast stored state is read is not known: give --read-rate, or a --dir to measure");
  }
  KVLANE_ASSIGN(const ObtainedProfile obtained, obtain_profile(flags));
  MachineProfile profile = obtained.profile;
  if (!flags.lossy) {
    std::erase_if(profile.forms, [](const ProfiledForm& form) { return form.name == kLossyForm; });
  }
  const double read_rate = flags.read_rate > 0 ? flags.read_rate * 1e9 : profile.read_rate;
  if (read_rate <= 0) {
    return invalid_argument(
        "the profile was measured without a directory: give --read-rate, or a "
        "--dir to measure");
  }
  const RestoreCosts costs = restore_costs(profile, flags.tokens, read_rate);
  (flags.json ? print_plan_json : print_plan)(flags, profile, read_rate, costs, plan_restore(costs),
                                              prudent_plan(costs));
  return {};
}

void add_restore(Command& parent) {
  Command command = parent.add_subcommand(
      "restore", "Which layers of a stored sequence to compute, project and read");
  command.footer(
      "Example: kvlane plan restore models/kvlane-tiny --tokens 512 --read-rate 2 "
      "--profile /tmp/profiles.json");
  const auto flags = std::make_shared<PlanFlags>();
  add_restore_profile_flags(command, *flags);
  command.add_option("--tokens", flags->tokens, "length of the sequence")
      .required()
      .check(range(1, 1 << 24));
  command.add_option("--profile", flags->file,
                     "file of `kvlane profile`; what it lacks is measured and added");
  command
      .add_option("--read-rate", flags->read_rate,
                  "GB/s at which stored state is read, instead of what was measured")
      .check(number_between(1e-6, 1e6));
  command.add_flag("--lossy", flags->lossy,
                   "take hidden states in 8 bits into account: K and V come back with an error");
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags] { return run_plan_restore(*flags); });
}

}  // namespace

void add_plan(Command& app) {
  Command command = app.add_subcommand("plan", "Tell what a planner would decide");
  command.require_subcommand();
  command.footer(
      "Example: kvlane plan restore models/kvlane-tiny --tokens 512 --read-rate 2 "
      "--profile /tmp/profiles.json");
  add_restore(command);
}

}  // namespace kvlane
