// `kvlane version`: what this program is, and which kernels it runs here.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/page_kernel.h"
#include "bench/figures.h"
#include "cli/command.h"
#include "codec/codec.h"
#include "codec/splitzip.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "ops/linear.h"
#include "quant/kv_format.h"
#include "transfer/ucx.h"

namespace kvlane {

namespace {

struct VersionFlags {
  bool verbose = false;
  bool json = false;
};

nlohmann::json describe_build() {
  nlohmann::json kernels = nlohmann::json::array();
  const Result<Isa> chosen = select_isa("auto");
  for (const Isa isa : kAllIsas) {
    kernels.push_back({{"cpu", isa_name(isa)},
                       {"supported", isa_supported(isa)},
                       {"products", linear_description(isa)},
                       {"attention", page_kernel_description(isa)},
                       {"splitzip", splitzip_description(isa)},
                       {"chosen", chosen.ok() && *chosen == isa}});
  }
  std::string machine = describe_machine(parallel_threads());
  if (chosen.ok()) machine += ", kernels " + std::string(isa_name(*chosen));
  return {{"version", KVLANE_VERSION}, {"commit", build_commit()},
          {"compiler", __VERSION__},   {"machine", machine},
          {"codecs", codec_names()},   {"kv_formats", kv_format_names()},
          {"ucx", has_ucx()},          {"kernels", std::move(kernels)}};
}

Status print_version(const VersionFlags& flags) {
  const nlohmann::json build = describe_build();
  if (flags.json) {
    std::cout << build.dump() << '\n';
    return {};
  }
  std::cout << "kvlane " << KVLANE_VERSION << '\n';
  if (!flags.verbose) return {};
  for (const char* name : {"commit", "compiler", "machine", "codecs", "kv_formats"}) {
    std::cout << name << ": " << build[name].get<std::string>() << '\n';
  }
  std::cout << "ucx: " << (build["ucx"].get<bool>() ? "yes" : "no") << '\n';
  std::cout << "kernels:\n";
  for (const nlohmann::json& tier : build["kernels"]) {
    const char* const state = tier["chosen"].get<bool>()      ? "chosen by --cpu auto"
                              : tier["supported"].get<bool>() ? "available"
                                                              : "not on this processor";
    std::cout << "  " << tier["cpu"].get<std::string>() << ": " << state << '\n';
    for (const char* operation : {"products", "attention", "splitzip"}) {
      std::cout << "    " << operation << ": " << tier[operation].get<std::string>() << '\n';
    }
  }
  return {};
}

}  // namespace

void add_version(Command& app) {
  Command command = app.add_subcommand("version", "Print the version and the kernels");
  command.footer("Example: kvlane version --verbose");
  const auto flags = std::make_shared<VersionFlags>();
  command.add_flag("--verbose,-v", flags->verbose, "build, codecs and the table of CPU kernels");
  command.add_flag("--json", flags->json, "all of it as one JSON object");
  command.action([flags] { return print_version(*flags); });
}

}  // namespace kvlane
