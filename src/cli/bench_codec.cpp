// `kvlane bench codec`: how small codecs make KV and hidden states, and how fast.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "bench/codec_bench.h"
#include "cli/bench.h"
#include "codec/codec.h"

namespace kvlane {
namespace {

struct BenchCodecFlags {
  CodecBenchOptions options;
  std::string directory;
  std::string text;
  std::string codebook_text;
  int size_mib = 256;
  std::string cpu = "auto";
  bool json = false;
};

Status run_bench_codec(const BenchCodecFlags& flags, const std::string& typed) {
  CodecBenchOptions options = flags.options;
  options.directory = flags.directory;
  options.text = flags.text;
  options.codebook_text = flags.codebook_text;
  options.size_bytes = static_cast<std::size_t>(flags.size_mib) << 20;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  KVLANE_ASSIGN(Report report, measure_with_progress("bench codec", options, bench_codec));
  print_report(std::move(report), "kvlane bench codec " + typed, flags.json);
  return {};
}

}  // namespace

void add_bench_codec(Command& bench) {
  Command command = bench.add_subcommand(
      "codec", "Ratio and speed of codecs on a model's K, V and hidden states, beside others");
  command.footer(
      "Example: kvlane bench codec models/kvlane-tiny --text README.md --codebook-text "
      "ARCHITECTURE.md --size 64");
  const auto flags = std::make_shared<BenchCodecFlags>();
  CodecBenchOptions& options = flags->options;
  command.add_option("DIR,--model", flags->directory, "model whose values are coded").required();
  command.add_option("--text", flags->text, "UTF-8 text that it reads").required();
  command.add_option("--codebook-text", flags->codebook_text,
                     "another one, for codebooks (default: what follows in --text)");
  command.add_option("--codecs", options.codecs, "what is measured")
      .delimiter(',')
      .capture_default_str();
  command.add_option("--tokens", options.tokens, "most tokens of each text that are computed")
      .check(range(64, 1 << 22))
      .capture_default_str();
  command.add_option("--size", flags->size_mib, "MiB of values that are timed outside of caches")
      .check(range(1, 1 << 12))
      .capture_default_str();
  command
      .add_option("--head-dim", options.head_dim,
                  "of planes that are timed (default: 128, or the model's if that is no part "
                  "of it)")
      .check(range(1, 1 << 16));
  command.add_option("--repeats", options.repeats, "medians are over so many rounds")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_option("--threads", options.threads, "of the figures on several threads")
      .check(range(1, 1024))
      .capture_default_str();
  command.add_flag("--no-yardsticks{false}", options.yardsticks,
                   "leave general compressors and the frontier out");
  command.add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags, command] { return run_bench_codec(*flags, command.typed_options()); });
}

}  // namespace kvlane
