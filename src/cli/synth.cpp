// `kvlane synth`: random weights in a real model's shape, for benchmarks.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "model/synth.h"

namespace kvlane {
namespace {

struct SynthFlags {
  std::string config;
  std::string out;
  int layers = 0;
  std::string type;
  std::uint64_t seed = 0;
  std::string tokenizer;
  bool json = false;
};

Status synth(const SynthFlags& flags) {
  constexpr std::size_t kConfigBytesMax = 1 << 20;
  SynthOptions options;
  KVLANE_ASSIGN(options.config_json, read_text_file(flags.config, kConfigBytesMax));
  options.config_name = flags.config;
  options.layers = flags.layers;
  options.seed = flags.seed;
  options.tokenizer_directory = flags.tokenizer;
  if (flags.type == "bf16") options.type = ElementType::kBf16;
  if (flags.type == "fp16") options.type = ElementType::kFp16;
  if (flags.type == "f32") options.type = ElementType::kF32;
  std::uint64_t bytes = 0;
  {
    Progress progress("writing " + flags.out);
    options.progress = [&bytes, show = progress.counter()](std::uint64_t done,
                                                           std::uint64_t total) {
      bytes = total;
      show(done, total);
    };
    KVLANE_TRY(write_synthetic_checkpoint(options, flags.out));
  }
  if (flags.json) {
    std::cout << nlohmann::json{{"directory", flags.out}, {"weight_bytes", bytes}}.dump() << '\n';
  } else {
    std::cout << "wrote " << bytes << " bytes of random weights to " << flags.out << '\n';
  }
  return {};
}

}  // namespace

void add_synth(Command& app) {
  Command command = app.add_subcommand(
      "synth", "Write a checkpoint with random weights in a real model's shape, for benchmarks");
  command.footer(
      "Example: kvlane synth --config tests/fixtures/configs/llama-3.1-8b.json --layers 2 "
      "--out /tmp/llama-8b-2");
  const auto flags = std::make_shared<SynthFlags>();
  command.add_option("--config", flags->config, "config.json of the model to imitate").required();
  command.add_option("--out", flags->out, "directory to write").required();
  command.add_option("--layers", flags->layers, "layers instead of the configuration's")
      .check(range(1, INT32_MAX));
  command.add_option("--dtype", flags->type, "bf16, fp16 or f32 instead of the configuration's")
      .check(one_of({"bf16", "fp16", "f32"}));
  command.add_option("--seed", flags->seed, "same seed, same weights").capture_default_str();
  command.add_option("--tokenizer", flags->tokenizer,
                     "directory to copy tokenizer and chat template from");
  command.add_flag("--json", flags->json, "result as one JSON object");
  command.action([flags] { return synth(*flags); });
}

}  // namespace kvlane
