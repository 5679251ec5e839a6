// `kvlane bench store`: reading a state store on given directories.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "bench/store_bench.h"
#include "cli/bench.h"
#include "codec/codec.h"

namespace kvlane {
namespace {

struct BenchStoreFlags {
  StoreBenchOptions options;
  std::vector<std::string> directories;
  std::string values;
  double read_rate = 0;  // GB/s
  std::string cpu = "auto";
  bool json = false;
};

Status run_bench_store(const BenchStoreFlags& flags, const std::string& typed) {
  StoreBenchOptions options = flags.options;
  options.directories.assign(flags.directories.begin(), flags.directories.end());
  options.values = flags.values;
  options.read_rate = flags.read_rate * 1e9;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  KVLANE_ASSIGN(Report report, measure_with_progress("bench store", options, bench_store));
  print_report(std::move(report), "kvlane bench store " + typed, flags.json);
  return {};
}

}  // namespace

void add_bench_store(Command& bench) {
  Command command = bench.add_subcommand(
      "store", "Speed of reading extents of a state store, beside its files alone, and of codecs");
  command.footer("Example: kvlane bench store /mnt/nvme0 /mnt/nvme1 --codec splitzip --threads 2");
  const auto flags = std::make_shared<BenchStoreFlags>();
  StoreBenchOptions& options = flags->options;
  command
      .add_option("directories", flags->directories,
                  "directories, one a device: new stores are made in them and removed afterwards")
      .required()
      .type_name("DIR...");
  command.add_option("--bytes", options.bytes, "values over all directories (2 GiB)")
      .transform(as_size());
  command
      .add_option("--extent-bytes", options.extent_bytes,
                  "values of an extent, a multiple of 32 KiB (1 MiB)")
      .transform(as_size());
  command.add_option("--depth", options.depth, "reads under way on each device")
      .check(range(1, 4096))
      .capture_default_str();
  command
      .add_option(
          "--codec", options.codec,
          "read extents of coded planes, too, and decode them: " + std::string(codec_names()))
      .capture_default_str();
  command.add_option("--values", flags->values,
                     "a file of bfloat16 values, instead of Gaussian ones");
  command.add_option("--threads", options.threads, "threads that decode while others are read")
      .check(range(1, 1024))
      .capture_default_str();
  command
      .add_option("--read-rate", flags->read_rate,
                  "GB/s: reads of each device are held back to those of a slower one")
      .check(positive_number());
  command.add_option("--repeats", options.repeats, "medians are over so many rounds")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags, command] { return run_bench_store(*flags, command.typed_options()); });
}

}  // namespace kvlane
