// `kvlane calibrate codebook`: which exponents the K and V of a model have, learnt from a text.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "calib/calibrate_codebook.h"
#include "calib/text_tokens.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cpu/parallel.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

struct CalibrateFlags {
  std::string directory;
  std::string text;
  std::string out;
  int tokens = 32768;
  int threads = 0;
  std::string cpu = "auto";
  bool json = false;
};

struct Summary {
  double lowest = 1;
  double mean = 0;
};

Summary summarise(const CodebookFile& file, std::size_t part) {
  Summary summary;
  for (std::size_t i = part; i < file.books.size(); i += 2) {
    summary.lowest = std::min(summary.lowest, file.books[i].coverage);
    summary.mean += file.books[i].coverage / (static_cast<double>(file.books.size()) / 2);
  }
  return summary;
}

void print(const CalibrateFlags& flags, const CodebookFile& file, double seconds) {
  const Summary k = summarise(file, 0);
  const Summary v = summarise(file, 1);
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

Status calibrate(const CalibrateFlags& flags) {
  const TimePoint start = SteadyClock::now();
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  KVLANE_ASSIGN(
      const std::vector<std::int32_t> tokens,
      read_text_tokens(flags.directory, flags.text, static_cast<std::size_t>(flags.tokens)));
  std::unique_ptr<Model> model;
  {
    Progress progress("loading " + flags.directory);
    KVLANE_ASSIGN(model,
                  Model::load(flags.directory, {.isa = isa, .progress = progress.counter()}));
  }
  const auto bad = std::ranges::find_if(
      tokens, [&](std::int32_t token) { return token < 0 || token >= model->config().vocab; });
  if (bad != tokens.end()) {
    return invalid_argument("the tokenizer gives token " + std::to_string(*bad) +
                            ", which the model does not know");
  }
  CodebookFile file;
  {
    Progress progress("computing " + std::to_string(tokens.size()) + " tokens");
    KVLANE_ASSIGN(file, calibrate_codebooks(*model, tokens, progress.counter()));
  }
  const std::string text = to_json(file);
  KVLANE_TRY(write_file(flags.out, as_byte_view(text)));
  print(flags, file, seconds_since(start));
  return {};
}

void add_codebook(CLI::App& parent, Run& run) {
  CLI::App* const command = parent.add_subcommand(
      "codebook", "Count exponents of K and V over a text, for codec splitzip (--kv-codebook)");
  command->footer(
      "Example: kvlane calibrate codebook models/kvlane-tiny-gqa --text README.md "
      "--out /tmp/codebook.json");
  const auto flags = std::make_shared<CalibrateFlags>();
  command->add_option("DIR,--model", flags->directory, "Hugging Face model directory")->required();
  command->add_option("--text", flags->text, "UTF-8 text like that of real prompts")->required();
  command->add_option("--out", flags->out, "JSON file to write")->required();
  command->add_option("--tokens", flags->tokens, "most tokens of the text that are computed")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "summary as one JSON object");
  command->callback([flags, &run] { run = [flags] { return calibrate(*flags); }; });
}

}  // namespace

void add_calibrate(CLI::App& app, Run& run) {
  CLI::App* const command = app.add_subcommand("calibrate", "Learn what codecs want to know");
  command->require_subcommand(1);
  command->footer(
      "Example: kvlane calibrate codebook models/kvlane-tiny-gqa --text README.md "
      "--out /tmp/codebook.json");
  add_codebook(*command, run);
}

}  // namespace kvlane
