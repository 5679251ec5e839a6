// `kvlane calibrate codebook`: which exponents the K and V of a model have, learnt from a text.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "calib/calibrate_codebook.h"
#include "calib/codebook_file.h"
#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

struct Coverage {
  double lowest = 1;
  double mean = 0;
};

Coverage coverage_of(const CodebookFile& file, std::size_t part) {
  Coverage coverage;
  for (std::size_t i = part; i < file.books.size(); i += 2) {
    coverage.lowest = std::min(coverage.lowest, file.books[i].coverage);
    coverage.mean += file.books[i].coverage / (static_cast<double>(file.books.size()) / 2);
  }
  return coverage;
}

void print_codebook(const CalibrationFlags& flags, const CodebookFile& file, double seconds) {
  const Coverage k = coverage_of(file, 0);
  const Coverage v = coverage_of(file, 1);
  if (flags.json) {
    const nlohmann::ordered_json json = {{"file", flags.out},
                                         {"model", to_hex(file.model)},
                                         {"tokens", file.tokens},
                                         {"layers", file.books.size() / 2},
                                         {"coverage",
                                          {{"k", {{"lowest", k.lowest}, {"mean", k.mean}}},
                                           {"v", {{"lowest", v.lowest}, {"mean", v.mean}}}}},
                                         {"seconds", seconds}};
    std::cout << json.dump() << '\n';
    return;
  }
  const auto percent = [](double share) { return 100 * share; };
  std::cout << std::fixed << "wrote codebooks of " << file.books.size() / 2 << " layers to "
            << flags.out << ", from " << file.tokens << " tokens in " << std::setprecision(1)
            << seconds << " s\n"
            << "values that the codebook holds, mean and lowest layer: K " << std::setprecision(3)
            << percent(k.mean) << " %, " << percent(k.lowest) << " %; V " << percent(v.mean)
            << " %, " << percent(v.lowest) << " %\n";
}

Status run_calibrate_codebook(const CalibrationFlags& flags) {
  const TimePoint start = SteadyClock::now();
  KVLANE_ASSIGN(const CalibrationInput input, load_calibration_input(flags));
  KVLANE_TRY(check_out(flags, [&](const std::string& out) -> Status {
    KVLANE_ASSIGN(const std::string text, read_text_file(out, kCodebookFileBytesMax));
    const KvShape shape = input.model->config().kv_shape();
    return parse_codebook_file(text, input.model->identity(), shape).status();
  }));
  const std::vector<std::int32_t>& tokens = input.tokens;
  CodebookFile file;
  {
    Progress progress("computing " + std::to_string(tokens.size()) + " tokens");
    KVLANE_ASSIGN(file, calibrate_codebooks(*input.model, tokens, progress.counter()));
  }
  const std::string text = to_json(file);
  KVLANE_TRY(write_file(flags.out, as_byte_view(text)));
  print_codebook(flags, file, seconds_since(start));
  return {};
}

void add_codebook(Command& parent) {
  Command command = parent.add_subcommand(
      "codebook", "Count exponents of K and V over a text, for codec splitzip (--kv-codebook)");
  command.footer(
      "Example: kvlane calibrate codebook models/kvlane-tiny-gqa --text README.md "
      "--out /tmp/codebook.json");
  const auto flags = std::make_shared<CalibrationFlags>();
  add_calibration_options(command, *flags, "JSON file to write");
  command.action([flags] { return run_calibrate_codebook(*flags); });
}

}  // namespace

void add_calibrate(Command& app) {
  Command command =
      app.add_subcommand("calibrate", "Learn what codecs and KV formats want to know");
  command.require_subcommand();
  command.footer(
      "Example: kvlane calibrate codebook models/kvlane-tiny-gqa --text README.md "
      "--out /tmp/codebook.json");
  add_codebook(command);
  add_calibrate_tables(command);
  add_calibrate_zack(command);
}

}  // namespace kvlane
