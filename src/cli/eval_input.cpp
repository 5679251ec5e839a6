// Loading, and saying what was loaded.
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_input.h"

#include <utility>

#include "base/file.h"
#include "bench/figures.h"
#include "calib/kv_tables_file.h"
#include "calib/text_tokens.h"
#include "cli/progress.h"
#include "cpu/parallel.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

Result<std::unique_ptr<Model>> load_with_progress(const std::string& directory, Isa isa) {
  Progress progress("loading " + directory);
  return Model::load(directory, {.isa = isa, .progress = progress.counter()});
}

Status check_tokens(std::span<const std::int32_t> tokens, int vocabulary) {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocabulary) continue;
    return invalid_argument("the tokenizer gives token " + std::to_string(token) +
                            ", which the model does not know");
  }
  return {};
}

}  // namespace

void add_eval_input_flags(Command& command, EvalInputFlags& flags) {
  command.add_option("--text", flags.text, "UTF-8 text that the model reads");
  command.add_option("--tokens", flags.tokens, "most tokens of the text that are read")
      .check(range(2, 1 << 24))
      .capture_default_str();
  command.add_option(
      "--kv-tables", flags.tables,
      "what `kvlane calibrate tables` wrote for this model, for kvquant and cachegen");
  command.add_option("--seed", flags.seed, "of prompts and of bootstrap draws")
      .capture_default_str();
  command.add_option("--threads", flags.threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  command.add_option("--cpu", flags.cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
}

KvFormatContext EvalInput::format_context() const {
  return {.shape = model->config().kv_shape(),
          .rope = &model->rope(),
          .tables = tables.get(),
          .isa = model->isa()};
}

Result<EvalInput> load_eval_input(const EvalInputFlags& flags, bool reads_text) {
  if (flags.threads > 0) set_parallel_threads(flags.threads);
  KVLANE_ASSIGN(const Isa isa, select_isa(flags.cpu));
  std::vector<std::int32_t> text;
  if (reads_text) {
    if (flags.text.empty()) return invalid_argument("there is no text to read: give --text FILE");
    KVLANE_ASSIGN(text, read_text_tokens(flags.directory, flags.text, std::size_t(flags.tokens)));
  }
  KVLANE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(flags.directory));
  KVLANE_ASSIGN(std::unique_ptr<Model> model, load_with_progress(flags.directory, isa));
  KVLANE_TRY(check_tokens(text, model->config().vocab));
  EvalInput input{
      .model = std::move(model), .tokenizer = std::move(tokenizer), .text = std::move(text)};
  input.facts = {{"model", flags.directory},
                 {"model identity", to_hex(input.model->identity())},
                 {"seed", std::to_string(flags.seed)},
                 {"kernels", std::string(isa_name(isa))}};
  if (reads_text) {
    KVLANE_ASSIGN(const Sha256Digest digest, sha256(std::as_bytes(std::span(input.text))));
    input.facts.push_back({"text", flags.text});
    input.facts.push_back({"text tokens", std::to_string(input.text.size())});
    input.facts.push_back({"text token ids, sha256", to_hex(digest)});
  }
  const auto files = kv_tables_files(flags.directory, flags.tables);
  KVLANE_ASSIGN(KvTables tables, load_kv_tables(files, input.model->identity()));
  input.tables = std::make_unique<KvTables>(std::move(tables));
  for (const std::filesystem::path& path : files) {
    KVLANE_ASSIGN(const MappedFile file, MappedFile::open(path));
    KVLANE_ASSIGN(const Sha256Digest digest, sha256(file.bytes()));
    input.facts.push_back({"KV tables, sha256", to_hex(digest)});
  }
  return input;
}

EvalRun make_eval_run(const EvalInput& input, const EvalInputFlags& flags,
                      const std::string& command) {
  EvalRun run{.model = input.model.get(), .seed = flags.seed};
  run.report.machine = describe_machine(parallel_threads());
  run.report.commit = build_commit();
  run.report.command = command;
  run.report.facts = input.facts;
  return run;
}

Status open_eval_log(const std::string& folder, EvalRun& run) {
  if (folder.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return invalid_argument("cannot make the folder " + folder + ": " + error.message());
  std::string subject = run.report.commit;
  for (const EvalFact& fact : run.report.facts) {
    // Where model and text lie does not matter.
    if (fact.name != "model" && fact.name != "text") subject += "\n" + fact.name + " " + fact.value;
  }
  KVLANE_ASSIGN(run.log, EvalLog::open(std::filesystem::path(folder) / "eval.jsonl", subject));
  return {};
}

}  // namespace kvlane
