// `kvlane calibrate tables`: what KV formats want to know about the K and V of a model.
// SPDX-License-Identifier: Apache-2.0
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "calib/calibrate_tables.h"
#include "calib/kv_tables_file.h"
#include "cli/calibration.h"
#include "cli/progress.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

constexpr const char* kByGradients = "gradients";

// What --for names, up to the "+".
Result<std::vector<std::shared_ptr<const ZackFormat>>> zacks_of(const CalibrationFlags& flags,
                                                                const Model& model) {
  std::vector<std::shared_ptr<const ZackFormat>> zacks;
  if (flags.formats.empty()) return zacks;
  KVLANE_ASSIGN(const KvTables tables,
                load_kv_tables(kv_tables_files(flags.directory, {}), model.identity()));
  for (const std::string& text : flags.formats) {
    KVLANE_ASSIGN(auto zack, zack_before_kvquant(text, model.config().kv_shape(), tables));
    zacks.push_back(std::move(zack));
  }
  return zacks;
}

std::string also_for(const CalibrationFlags& flags) {
  std::string text;
  for (const std::string& format : flags.formats) text += ", " + format;
  return text;
}

Status run_calibrate_tables(const CalibrationFlags& flags) {
  const TimePoint start = SteadyClock::now();
  KVLANE_ASSIGN(const CalibrationInput input, load_calibration_input(flags));
  const ModelIdentity& identity = input.model->identity();
  KVLANE_TRY(check_out(
      flags, [&](const std::string& out) { return load_kv_tables(out, identity).status(); }));
  const bool weighted = flags.weights == kByGradients;
  KVLANE_ASSIGN(const auto behind, zacks_of(flags, *input.model));
  KvTables tables;
  {
    Progress progress("computing " + std::to_string(input.tokens.size()) + " tokens twice" +
                      (weighted ? ", and gradients" : ""));
    KVLANE_ASSIGN(tables,
                  calibrate_tables(*input.model, input.tokens,
                                   weighted ? SignpostWeights::kGradients : SignpostWeights::kNone,
                                   progress.counter(), behind));
  }
  const Bytes file = build_kv_tables(tables, identity, input.tokens.size());
  KVLANE_TRY(write_file(flags.out, file));
  const double seconds = seconds_since(start);
  if (flags.json) {
    const nlohmann::ordered_json json = {{"file", flags.out},
                                         {"model", to_hex(identity)},
                                         {"tokens", input.tokens.size()},
                                         {"layers", input.model->config().layers},
                                         {"tables", tables.values.size()},
                                         {"bytes", file.size()},
                                         {"weights", flags.weights},
                                         {"for", flags.formats},
                                         {"seconds", seconds}};
    std::cout << json.dump() << '\n';
    return {};
  }
  std::cout << std::fixed << std::setprecision(1) << "wrote " << tables.values.size()
            << " tables for formats cachegen and kvquant" << also_for(flags) << " to " << flags.out
            << " (" << static_cast<double>(file.size()) / 1e6 << " MB), from "
            << input.tokens.size() << " tokens in " << seconds << " s\n";
  return {};
}

}  // namespace

void add_calibrate_tables(Command& parent) {
  Command command = parent.add_subcommand(
      "tables",
      "Statistics of K and V over a text, for KV formats cachegen and kvquant "
      "(--kv-tables)");
  command.footer(
      "Example: kvlane calibrate tables models/kvlane-tiny-gqa --text README.md "
      "--out /tmp/tables.safetensors");
  const auto flags = std::make_shared<CalibrationFlags>();
  add_calibration_options(command, *flags, "safetensors file to write");
  command
      .add_option(
          "--weights", flags->weights,
          "how much a value counts when signposts of kvquant are sought: by the square of its "
          "gradient, as KVQuant does (gradients), or as any other, several times as fast (none)")
      .check(one_of({kByGradients, "none"}))
      .capture_default_str();
  command
      .add_option("--for", flags->formats,
                  "also tables for this format, as in zack:keep=0.5+kvquant, of a directory that "
                  "`kvlane calibrate zack` made; may be given several times")
      .one_value_each();
  command.action([flags] { return run_calibrate_tables(*flags); });
}

}  // namespace kvlane
