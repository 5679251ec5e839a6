// `kvlane eval`: what KV formats cost in quality, on any checkpoint.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/file.h"
#include "bench/figures.h"
#include "calib/kv_tables_file.h"
#include "calib/text_tokens.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/eval_tasks.h"
#include "cli/progress.h"
#include "cpu/parallel.h"
#include "crypto/sha256.h"
#include "eval/eval_page.h"
#include "eval/eval_run.h"
#include "model/tokenizer.h"

namespace kvlane {
namespace {

struct EvalFlags {
  std::string directory;
  std::string formats = "bf16";
  std::string kv_tables;
  std::string text;
  int tokens = 32768;
  EvalTaskFlags tasks;
  std::uint64_t seed = 1;
  std::string out;
  int threads = 0;
  std::string cpu = "auto";
  bool json = false;
};

Result<std::unique_ptr<Model>> load(const EvalFlags& flags, Isa isa) {
  Progress progress("loading " + flags.directory);
  return Model::load(flags.directory, {.isa = isa, .progress = progress.counter()});
}

Status check_tokens(std::span<const std::int32_t> tokens, int vocabulary) {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocabulary) continue;
    return invalid_argument("the tokenizer gives token " + std::to_string(token) +
                            ", which the model does not know");
  }
  return {};
}

// What every task depends on. What belongs to one task is part of its keys in the log.
Result<std::vector<EvalFact>> facts_of(const EvalFlags& flags, std::span<const std::int32_t> text,
                                       const Model& model) {
  std::vector<EvalFact> facts = {{"model", flags.directory},
                                 {"model identity", to_hex(model.identity())},
                                 {"seed", std::to_string(flags.seed)},
                                 {"kernels", std::string(isa_name(model.isa()))}};
  if (!text.empty()) {
    KVLANE_ASSIGN(const Sha256Digest digest, sha256(std::as_bytes(text)));
    facts.push_back({"text", flags.text});
    facts.push_back({"text tokens", std::to_string(text.size())});
    facts.push_back({"text token ids, sha256", to_hex(digest)});
  }
  return facts;
}

Status open_log(const EvalFlags& flags, EvalRun& run) {
  if (flags.out.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error)
    return invalid_argument("cannot make the folder " + flags.out + ": " + error.message());
  std::string subject = run.report.commit;
  for (const EvalFact& fact : run.report.facts) {
    // Where model and text lie does not matter.
    if (fact.name != "model" && fact.name != "text") subject += "\n" + fact.name + " " + fact.value;
  }
  KVLANE_ASSIGN(run.log, EvalLog::open(std::filesystem::path(flags.out) / "eval.jsonl", subject));
  return {};
}

Status write_report(const EvalFlags& flags, const EvalReport& report) {
  if (!flags.out.empty()) {
    const std::filesystem::path folder = flags.out;
    KVLANE_TRY(write_file(folder / "eval.json", as_byte_view(eval_json(report))));
    KVLANE_TRY(write_file(folder / "eval.csv", as_byte_view(eval_csv(report))));
    KVLANE_TRY(write_file(folder / "eval.html", as_byte_view(eval_page(report))));
  }
  std::cout << (flags.json ? eval_json(report) + "\n" : eval_table(report));
  return {};
}

Status evaluate(const EvalFlags& flags, const std::string& typed) {
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  std::vector<std::int32_t> text;
  if (needs_text(flags.tasks)) {
    if (flags.text.empty()) return invalid_argument("these tasks read a text: give --text FILE");
    KVLANE_ASSIGN(text, read_text_tokens(flags.directory, flags.text, std::size_t(flags.tokens)));
  }
  KVLANE_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(flags.directory));
  KVLANE_ASSIGN(const std::unique_ptr<Model> model, load(flags, isa));
  KVLANE_TRY(check_tokens(text, model->config().vocab));

  EvalRun run{.model = model.get(), .seed = flags.seed};
  KvTables tables;
  if (!flags.kv_tables.empty()) {
    KVLANE_ASSIGN(tables, load_kv_tables(flags.kv_tables, model->identity()));
  }
  KVLANE_ASSIGN(run.formats, make_formats(flags.formats, {.shape = model->config().kv_shape(),
                                                          .rope = &model->rope(),
                                                          .tables = &tables,
                                                          .isa = isa}));
  run.report.machine = describe_machine(parallel_threads());
  run.report.commit = build_commit();
  run.report.command = "kvlane eval " + typed;
  KVLANE_ASSIGN(run.report.facts, facts_of(flags, text, *model));
  if (!flags.kv_tables.empty()) {
    KVLANE_ASSIGN(const MappedFile file, MappedFile::open(flags.kv_tables));
    KVLANE_ASSIGN(const Sha256Digest digest, sha256(file.bytes()));
    run.report.facts.push_back({"KV tables, sha256", to_hex(digest)});
  }
  KVLANE_TRY(open_log(flags, run));
  {
    Progress progress("evaluating");
    run.progress = [&](const std::string& what, std::uint64_t done, std::uint64_t total) {
      progress.show(what + ": " + std::to_string(done) + " of " + std::to_string(total));
    };
    KVLANE_TRY(run_eval_tasks(flags.tasks, flags.directory, tokenizer, text, run));
  }
  return write_report(flags, run.report);
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  CLI::App* const command = app.add_subcommand(
      "eval", "What KV formats cost in quality, beside the cache in 16 bits; docs/eval.md");
  command->footer(
      "Example: kvlane eval models/kvlane-tiny-gqa --text README.md --formats int8,kivi:bits=2 "
      "--out /tmp/eval");
  const auto flags = std::make_shared<EvalFlags>();
  command->add_option("DIR,--model", flags->directory, "Hugging Face model directory")->required();
  command->add_option("--text", flags->text, "UTF-8 text that the model reads");
  command
      ->add_option("--formats", flags->formats,
                   "KV formats, for example int8,kivi:bits=2,group=32 (bf16 is always there); "
                   "known: " +
                       std::string(kv_format_names()))
      ->capture_default_str();
  command->add_option("--kv-tables", flags->kv_tables,
                      "what `kvlane calibrate tables` wrote for this model, for kvquant and "
                      "cachegen");
  command->add_option("--tokens", flags->tokens, "most tokens of the text that are read")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  add_eval_task_flags(*command, flags->tasks);
  command->add_option("--seed", flags->seed, "of prompts and of bootstrap draws")
      ->capture_default_str();
  command->add_option(
      "--out", flags->out,
      "folder for eval.html, eval.json and eval.csv; what is measured is kept in eval.jsonl "
      "there, and an interrupted run goes on");
  command->add_option("--threads", flags->threads, "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object instead of tables");
  command->callback([flags, command, &run] {
    run = [flags, typed = typed_options(*command)] { return evaluate(*flags, typed); };
  });
}

}  // namespace kvlane
