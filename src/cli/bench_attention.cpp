// `kvlane bench attention`: a token's attention over long caches in every format.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include "bench/attention_bench.h"
#include "calib/kv_tables_file.h"
#include "cli/bench.h"
#include "model/checkpoint.h"

namespace kvlane {
namespace {

struct BenchAttentionFlags {
  AttentionBenchOptions options;
  int size_mib = 256;
  std::string model;
  std::string cpu = "auto";
  bool json = false;
};

// Shape and spectra of a model, and nothing else of it.
Status take_model(const std::string& directory, AttentionBenchOptions& options) {
  KVLANE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(directory));
  KVLANE_ASSIGN(const ModelIdentity identity, checkpoint.identity({}));
  const KvShape shape = checkpoint.config().kv_shape();
  options.head_dim = shape.head_dim;
  options.kv_heads = shape.kv_heads;
  const Result<KvTables> zack =
      load_kv_tables(std::filesystem::path(directory) / kZackTables, identity);
  if (!zack.ok()) {
    return zack.status().with_context("spectra of a model that `kvlane calibrate zack` made");
  }
  options.zack = *zack;
  return {};
}

Status run_bench_attention(const BenchAttentionFlags& flags, const std::string& typed) {
  AttentionBenchOptions options = flags.options;
  options.size_bytes = static_cast<std::size_t>(flags.size_mib) << 20;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  if (!flags.model.empty()) KVLANE_TRY(take_model(flags.model, options));
  KVLANE_ASSIGN(Report report, measure_with_progress("bench attention", options, bench_attention));
  print_report(std::move(report), "kvlane bench attention" + (typed.empty() ? "" : " " + typed),
               flags.json);
  return {};
}

}  // namespace

void add_bench_attention(Command& bench) {
  Command command = bench.add_subcommand(
      "attention", "Speed of attention over caches in every KV format, beside 16 bits");
  command.footer(
      "Example: kvlane bench attention --formats int4,kivi:bits=2,group=64 --tokens 32768");
  const auto flags = std::make_shared<BenchAttentionFlags>();
  AttentionBenchOptions& options = flags->options;
  command.add_option("--formats", options.formats, "KV formats; bf16 is always there")
      .capture_default_str();
  command.add_option("--tokens", options.tokens, "lengths of the cache")
      .delimiter(',')
      .capture_default_str();
  command.add_option("--groups", options.groups, "query heads of a KV head")
      .delimiter(',')
      .capture_default_str();
  command
      .add_option("--queries", options.query_tokens,
                  "query tokens at once: 1 is a step of decoding, more a part of a prompt")
      .check(range(1, 4096))
      .capture_default_str();
  const Option head_dim = command.add_option("--head-dim", options.head_dim, "channels of a head")
                              .check(range(2, 256))
                              .capture_default_str();
  const Option kv_heads = command.add_option("--kv-heads", options.kv_heads, "KV heads of a layer")
                              .check(range(1, 128))
                              .capture_default_str();
  command
      .add_option("--model", flags->model,
                  "a directory that `kvlane calibrate zack` made: its shape and the widths that "
                  "its heads get, layers over and over, instead of made-up ones")
      .excludes(head_dim)
      .excludes(kv_heads);
  command
      .add_option("--size", flags->size_mib,
                  "MiB of each cache, were it in 16 bits: layers are added up to that, so that "
                  "it lies in memory and not in caches")
      .check(range(1, 1 << 16))
      .capture_default_str();
  command.add_option("--repeats", options.repeats, "medians are over so many rounds")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_option("--threads", options.threads, "threads that compute")
      .check(range(1, 1024))
      .capture_default_str();
  command.add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags, command] { return run_bench_attention(*flags, command.typed_options()); });
}

}  // namespace kvlane
