// The program kvlane_gpu_bench: what our kernels do on this machine's GPU. Apart from kvlane, so
// that it builds where nothing but CUDA and a compiler is.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>

#include "bench/gpu_bench.h"

namespace {

using namespace kvlane;

constexpr std::string_view kHelp =
    R"(Times codecs, attention and row operations on a GPU, and what bounds them.

Usage: kvlane_gpu_bench [--device N] [--planes N] [--launch N[,N...]] [--rounds N]
                        [--only GROUP[,GROUP...]] [--file FILE] [--output FILE] [--json]

  --device N         which GPU (0)
  --planes N         planes of 64 tokens x 8 heads x 128 values; all of them make a run (4096)
  --launch N[,N...]  planes in one launch, each a divisor of --planes (256,1024,4096)
  --rounds N         how often each thing is timed; figures are medians (20)
  --only GROUP[,...] some figures: splitzip, channel, fp8, attention, prefill, hack, zack, rows,
                     step
  --file FILE        bfloat16 values in place of made ones
  --output FILE      where to write an object in the form of docs/bench.md, too
  --json             the same in place of a table

GB/s of a codec count raw bytes; their baseline is what copying as many bytes would allow.
Without a GPU it says so and fails.

Example: kvlane_gpu_bench --planes 1024 --launch 256,1024 --json
)";

struct Arguments {
  GpuBenchOptions options;
  std::string output;
  bool json = false;
  bool help = false;
};

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<std::vector<int>> numbers(std::string_view text) {
  std::vector<int> all;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::optional<int> one = number(text.substr(0, comma));
    if (!one) return invalid_argument("'" + std::string(text) + "' is not a list of numbers");
    all.push_back(*one);
    if (comma == std::string_view::npos) return all;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> all;
  while (true) {
    const std::size_t comma = text.find(',');
    all.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return all;
    text.remove_prefix(comma + 1);
  }
}

Result<Arguments> parse(int count, char** words) {
  Arguments arguments;
  GpuBenchOptions& options = arguments.options;
  bool launches_given = false;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = words[i];
    if (name == "--json") {
      arguments.json = true;
      continue;
    }
    if (name == "-h" || name == "--help") {
      arguments.help = true;
      continue;
    }
    const bool known = name == "--device" || name == "--planes" || name == "--launch" ||
                       name == "--rounds" || name == "--only" || name == "--file" ||
                       name == "--output";
    if (!known) return invalid_argument("unknown argument '" + std::string(name) + "'");
    if (++i == count) return invalid_argument(std::string(name) + " needs a value");
    if (name == "--only") {
      options.only = words_of(words[i]);
    } else if (name == "--file") {
      options.file = words[i];
    } else if (name == "--output") {
      arguments.output = words[i];
    } else if (name == "--launch") {
      KVLANE_ASSIGN(options.launches, numbers(words[i]));
      launches_given = true;
    } else {
      const std::optional<int> value = number(words[i]);
      if (!value) {
        return invalid_argument(std::string(name) + " needs a number, not '" + words[i] + "'");
      }
      (name == "--device"   ? options.device
       : name == "--planes" ? options.planes
                            : options.rounds) = *value;
    }
  }
  if (!launches_given) {
    std::erase_if(options.launches, [&](int size) { return size >= options.planes; });
    options.launches.push_back(options.planes);
  }
  return arguments;
}

Result<Report> measure(const GpuBenchOptions& options, std::string command) {
  Report report;
  report.commit = build_commit();
  report.command = std::move(command);
  KVLANE_ASSIGN(report.results, bench_gpu(options, [](const std::string& what) {
                  std::cerr << "measuring: " << what << '\n';
                }));
  KVLANE_ASSIGN(report.machine, describe_gpu(options.device));
  return report;
}

}  // namespace

int main(int count, char** words) {
  const Result<Arguments> arguments = parse(count, words);
  if (!arguments.ok()) {
    std::cerr << "kvlane_gpu_bench: " << arguments.status().message() << "; see --help\n";
    return 2;
  }
  if (arguments->help) {
    std::cout << kHelp;
    return 0;
  }
  std::string command = "kvlane_gpu_bench";
  for (int i = 1; i < count; ++i) command += std::string(" ") + words[i];
  const Result<Report> report = measure(arguments->options, std::move(command));
  if (!report.ok()) {
    std::cerr << "kvlane_gpu_bench: nothing was measured: " << report.status().message() << '\n';
    return 1;
  }
  if (!arguments->output.empty()) {
    std::ofstream file(arguments->output);
    if (!(file << report_json(*report) << '\n' << std::flush)) {
      std::cerr << "kvlane_gpu_bench: '" << arguments->output << "' cannot be written\n";
      return 1;
    }
  }
  std::cout << (arguments->json ? report_json(*report) + "\n" : report_table(*report));
  return 0;
}
