// `kvlane calibrate zack`: a model whose V is rotated to few strong axes, and the rotations of K.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/clock.h"
#include "base/file.h"
#include "calib/calibrate_zack.h"
#include "calib/fold.h"
#include "calib/folded_checkpoint.h"
#include "calib/kv_tables_file.h"
#include "calib/zack_errors.h"
#include "cli/calibration.h"
#include "cli/progress.h"
#include "cli/zack_report.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

// Values of --rotation.
constexpr const char* kStacked = "stacked";
constexpr const char* kProduct = "product";

struct ZackFlags {
  CalibrationFlags common;
  std::string kind = kStacked;
  bool balance = false;
  std::string report;

  RotationOptions rotation() const {
    return {kind == kProduct ? RotationKind::kProduct : RotationKind::kStacked, balance};
  }
};

// The directory to write, without a slash at its end.
Result<fs::path> find_place(const std::string& out) {
  std::error_code error;
  fs::path path = fs::absolute(out, error).lexically_normal();
  if (error) return invalid_argument("--out is no path: " + out);
  if (!path.has_filename()) path = path.parent_path();
  if (fs::exists(path, error)) return invalid_argument(out + " is there already");
  if (!fs::is_directory(path.parent_path(), error)) {
    return not_found("there is no directory " + path.parent_path().string());
  }
  return path;
}

// Where sums are kept until all is written.
fs::path state_of(const fs::path& out) { return out.string() + ".partial"; }
fs::path other_state_of(const fs::path& out) { return out.string() + ".other.partial"; }

// Seconds of a calibration's stages, in their order.
struct Stages {
  double load = 0;
  double prefill = 0;  // the model over the texts, and the sums
  double solve = 0;
  double measure = 0;
  double fold = 0;  // and write
};

struct Sums {
  ModelIdentity model{};
  ZackSums own;
  std::optional<ZackSums> other;
  std::optional<ZackSample> sample;
};

// Both texts through the model.
Result<Sums> sum_texts(const ZackFlags& flags, const CalibrationInput& input, const fs::path& out,
                       Stages& stages) {
  const ScopedTimer timer(stages.prefill);
  const auto sum = [&](std::span<const std::int32_t> tokens, const fs::path& state, bool snapshots,
                       ZackSample* seen) -> Result<ZackSums> {
    Progress progress("computing " + std::to_string(tokens.size()) + " tokens");
    return sum_for_zack(
        *input.model, tokens,
        {.state = state, .snapshots = snapshots, .sample = seen, .progress = progress.counter()});
  };
  Sums sums{.model = input.model->identity(),
            .own = {},
            .other = {},
            .sample = ZackSample(*input.model, input.tokens.size())};
  KVLANE_ASSIGN(sums.own, sum(input.tokens, state_of(out), !flags.report.empty(), &*sums.sample));
  if (!input.other.empty()) {
    KVLANE_ASSIGN(sums.other, sum(input.other, other_state_of(out), false, nullptr));
  }
  return sums;
}

Result<ZackReport> make_report(const ZackFlags& flags, const Sums& sums,
                               std::span<const double> outputs, const ZackRotations& rotations) {
  ZackReport report{.model = sums.model,
                    .text = flags.common.text,
                    .tokens = sums.own.grams.tokens,
                    .rotation = flags.kind,
                    .balance = flags.balance};
  KVLANE_ASSIGN(report.study, study_zack(sums.own, outputs, rotations, flags.rotation()));
  if (sums.other) {
    KVLANE_ASSIGN(const ZackRotations other,
                  zack_rotations(sums.other->grams, outputs, flags.rotation()));
    report.other_text = flags.common.other_text;
    report.other = pair_distance(other, rotations, sums.other->grams.tokens);
  }
  return report;
}

Result<ZackRotations> solve(const ZackFlags& flags, const Sums& sums,
                            std::span<const double> outputs, Stages& stages) {
  const ScopedTimer timer(stages.solve);
  return zack_rotations(sums.own.grams, outputs, flags.rotation());
}

Result<ZackErrors> measure_errors(const CalibrationInput& input, const Checkpoint& checkpoint,
                                  const ZackRotations& rotations, ZackSample& sample,
                                  Stages& stages) {
  const ScopedTimer timer(stages.measure);
  Progress progress("measuring what codes lose");
  KVLANE_TRY(sample.complete(*input.model, input.tokens));
  return measure_zack_errors(checkpoint, input.model->isa(), sample, rotations, progress.counter());
}

struct Written {
  ModelIdentity model{};
  std::string table;  // of the report
};

// The model and the sample are gone from memory when it has been measured.
Result<Written> write_all_of(const ZackFlags& flags, CalibrationInput input, Sums& sums,
                             const fs::path& out, Stages& stages) {
  KVLANE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(flags.common.directory));
  const std::vector<double> outputs = output_grams(checkpoint);
  KVLANE_ASSIGN(const ZackRotations rotations, solve(flags, sums, outputs, stages));
  Written written;
  if (!flags.report.empty()) {
    KVLANE_ASSIGN(const ZackReport report, make_report(flags, sums, outputs, rotations));
    KVLANE_TRY(write_file(flags.report, as_byte_view(zack_report_json(report))));
    written.table = zack_report_table(report);
  }
  KVLANE_ASSIGN(const ZackErrors errors,
                measure_errors(input, checkpoint, rotations, *sums.sample, stages));
  input.model.reset();
  sums.sample.reset();
  const ScopedTimer timer(stages.fold);
  Progress progress("folding " + flags.common.directory);
  KVLANE_ASSIGN(written.model,
                write_folded_checkpoint(checkpoint, rotations, errors, sums.own.grams.tokens, out,
                                        progress.counter()));
  return written;
}

void print_zack(const ZackFlags& flags, const Sums& sums, const Written& written,
                const Stages& stages, double seconds) {
  const std::uint64_t tokens = sums.own.grams.tokens;
  if (flags.common.json) {
    const nlohmann::ordered_json json = {{"directory", flags.common.out},
                                         {"model", to_hex(sums.model)},
                                         {"folded_model", to_hex(written.model)},
                                         {"tokens", tokens},
                                         {"layers", sums.own.grams.layers},
                                         {"kv_heads", sums.own.grams.kv_heads},
                                         {"head_dim", sums.own.grams.head_dim},
                                         {"rotation", flags.kind},
                                         {"balance", flags.balance},
                                         {"seconds", seconds},
                                         {"stages",
                                          {{"load", stages.load},
                                           {"prefill", stages.prefill},
                                           {"solve", stages.solve},
                                           {"measure", stages.measure},
                                           {"fold", stages.fold}}}};
    std::cout << json.dump() << '\n';
    return;
  }
  std::cout << written.table << std::fixed << std::setprecision(1) << "wrote "
            << flags.common.directory << " with V rotated to " << flags.common.out
            << ", and rotations of K to " << (fs::path(flags.common.out) / kZackTables).string()
            << ", from " << tokens << " tokens in " << seconds << " s\n";
}

Status run_calibrate_zack(const ZackFlags& flags) {
  const TimePoint start = SteadyClock::now();
  if (flags.balance && flags.kind != kStacked) {
    return invalid_argument(
        "--balance is for --rotation stacked: a product has no scales to choose");
  }
  KVLANE_ASSIGN(const fs::path out, find_place(flags.common.out));
  KVLANE_ASSIGN(CalibrationInput input, load_calibration_input(flags.common));
  Stages stages{.load = seconds_since(start)};
  KVLANE_ASSIGN(Sums sums, sum_texts(flags, input, out, stages));
  KVLANE_ASSIGN(const Written written, write_all_of(flags, std::move(input), sums, out, stages));
  std::error_code ignored;
  for (const fs::path& state : {state_of(out), other_state_of(out)}) fs::remove(state, ignored);
  print_zack(flags, sums, written, stages, seconds_since(start));
  return {};
}

}  // namespace

void add_calibrate_zack(Command& parent) {
  Command command = parent.add_subcommand(
      "zack",
      "Rotate K and V to few strong axes, learnt from a text: a model that computes the same, V's "
      "rotations in its weights, K's in a file beside them");
  command.footer(
      "Example: kvlane calibrate zack models/kvlane-small --text FILE --out "
      "/tmp/kvlane-small-zack");
  const auto flags = std::make_shared<ZackFlags>();
  flags->common.tokens_min = static_cast<int>(kZackTokensMin);
  add_calibration_options(command, flags->common,
                          "directory to write; an interrupted run goes on from OUT.partial");
  command
      .add_option("--rotation", flags->kind,
                  "what axes are chosen by: stacked, K on top of Q, as in the paper, or "
                  "product, their scores")
      .check(one_of({kStacked, kProduct}))
      .capture_default_str();
  command.add_flag("--balance", flags->balance,
                   "stacked only: let Q and K, and V and the output projection, weigh alike");
  const Option report = command.add_option(
      "--report", flags->report, "JSON file to write: spectra, heads, how much text is needed");
  command
      .add_option("--other-text", flags->common.other_text,
                  "for the report: another text, whose rotations are compared")
      .needs(report);
  command.action([flags] { return run_calibrate_zack(*flags); });
}

}  // namespace kvlane
