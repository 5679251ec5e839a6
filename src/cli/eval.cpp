// `kvlane eval`: what KV formats cost in quality, on any checkpoint.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/file.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/eval_input.h"
#include "cli/eval_search.h"
#include "cli/eval_tasks.h"
#include "cli/progress.h"
#include "eval/eval_page.h"
#include "eval/eval_run.h"

namespace kvlane {
namespace {

struct EvalFlags {
  EvalInputFlags input;
  std::string formats = "bf16";
  EvalTaskFlags tasks;
  std::string out;
  bool json = false;
};

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
  KVLANE_ASSIGN(const EvalInput input, load_eval_input(flags.input, needs_text(flags.tasks)));
  EvalRun run = make_eval_run(input, flags.input, "kvlane eval " + typed);
  KVLANE_ASSIGN(run.formats, make_formats(flags.formats, input.format_context()));
  KVLANE_TRY(open_eval_log(flags.out, run));
  {
    Progress progress("evaluating");
    run.progress = [&](const std::string& what, std::uint64_t done, std::uint64_t total) {
      progress.show(what + ": " + std::to_string(done) + " of " + std::to_string(total));
    };
    KVLANE_TRY(
        run_eval_tasks(flags.tasks, flags.input.directory, input.tokenizer, input.text, run));
  }
  return write_report(flags, run.report);
}

}  // namespace

void add_eval(Command& app) {
  Command command = app.add_subcommand(
      "eval", "What KV formats cost in quality, beside the cache in 16 bits; docs/eval.md");
  command.footer(
      "Example: kvlane eval models/kvlane-tiny-gqa --text README.md --formats int8,kivi:bits=2 "
      "--tasks text,kv,passkey --out /tmp/eval");
  add_eval_search(command);
  const auto flags = std::make_shared<EvalFlags>();
  // Not required(): `eval search` has a directory of its own.
  const Option directory =
      command.add_option("DIR,--model", flags->input.directory, "Hugging Face model directory");
  command
      .add_option("--formats", flags->formats,
                  "KV formats, for example int8,kivi:bits=2,group=32 (bf16 is always there); "
                  "known: " +
                      std::string(kv_format_names()) +
                      "; h2o and keyformer evict tokens, alone or as in zack:keep=0.5+h2o")
      .capture_default_str();
  add_eval_task_flags(command, flags->tasks);
  add_eval_input_flags(command, flags->input);
  command.add_option("--out", flags->out,
                     "folder for eval.html, eval.json and eval.csv; what is measured is kept in "
                     "eval.jsonl there, and an interrupted run goes on");
  command.add_flag("--json", flags->json, "one JSON object instead of tables");
  command.action([flags, command] { return evaluate(*flags, command.typed_options()); }, directory);
}

}  // namespace kvlane
