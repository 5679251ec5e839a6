// `kvlane rank`: one of the processes that compute a model together.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdint>
#include <memory>

#include "calib/kv_tables_file.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/loaded_model.h"
#include "cli/signals.h"
#include "cli/state_store.h"
#include "cli/worker_ranks.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "quant/heads_together.h"
#include "ranks/rank_process.h"
#include "server/http.h"
#include "transfer/tcp.h"

namespace kvlane {
namespace {

struct RankFlags {
  ModelFlags model;
  int rank = 0;
  std::string head;
  std::string bind = "127.0.0.1";
  std::string advertise_host;
  int parent = 0;
};

Status join(const RankFlags& flags) {
  if (flags.parent != 0) {
    end_with_parent(flags.parent, SIGKILL);
    // What reaches all processes of a group reaches the head, which ends its ranks in order.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  }
  KVLANE_TRY(check_parts(flags.model));
  const int ranks = flags.model.tensor_parallel;
  const int stages = flags.model.pipeline_parallel;
  if (flags.rank >= ranks * stages) {
    return invalid_argument("--rank " + std::to_string(flags.rank) + " is none of the " +
                            std::to_string(ranks * stages) + " that --tp and --pp make");
  }
  RankProcessOptions options;
  KVLANE_ASSIGN(options.head, parse_address(flags.head));
  KVLANE_ASSIGN(options.key, ranks_key(flags.model));
  options.bind = {flags.bind, 0};
  options.advertised_host = flags.advertise_host;
  ModelOptions model_options;
  KVLANE_ASSIGN(model_options.isa, select_isa(flags.model.cpu));
  model_options.context_max = flags.model.max_model_len;
  model_options.part = {stages, flags.rank / ranks, ranks, flags.rank % ranks};
  if (flags.model.threads > 0) set_parallel_threads(flags.model.threads);
  KVLANE_ASSIGN(const auto model, Model::load(flags.model.directory, model_options));
  KVLANE_ASSIGN(const KvTables tables,
                load_kv_tables(kv_tables_files(flags.model.directory, flags.model.kv_tables),
                               model->identity()));
  options.make_format = [&](const std::string& format) {
    const Share heads = kv_heads_of(model->whole_config(), model->part());
    const KvFormatContext whole{.shape = model->whole_config().kv_shape(),
                                .rope = &model->rope(),
                                .tables = &tables,
                                .isa = model->isa()};
    return make_rank_format(format, whole, heads.first, heads.count);
  };
  const StateFlags& state = flags.model.state;
  if (!state.directories.empty()) {
    options.open_store = [&](int rows_max) { return open_rank_store(state, *model, rows_max); };
  }
  KVLANE_ASSIGN(const std::unique_ptr<Network> network, make_tcp_network());
  Status ended = run_rank(*network, *model, options);
  // Where the head started this process, it says why it ends.
  if (flags.parent != 0 && ended.code() == Code::kAborted) return {};
  return ended;
}

}  // namespace

void add_rank(Command& app) {
  Command command = app.add_subcommand(
      "rank", "Compute a part of a model for a worker that was started with --tp or --pp");
  command.footer(
      "The worker starts its ranks itself, unless it has --ranks-bind: then each is started like "
      "this, with the worker\'s --tp and --pp.\n"
      "Example: KVLANE_RANKS_KEY=$KEY kvlane rank models/kvlane-small --tp 2 --rank 1 --head "
      "10.0.0.1:7000 --bind 10.0.0.2");
  const auto flags = std::make_shared<RankFlags>();
  add_part_flags(command, flags->model);
  add_store_flags(command, flags->model.state);
  command.add_option("--rank", flags->rank, "which one: stage * tp + rank in its stage")
      .required()
      .check(range(0, INT32_MAX));
  command.add_option("--head", flags->head, "where the worker waits, HOST:PORT").required();
  command.add_option("--bind", flags->bind, "address where other ranks come").capture_default_str();
  command.add_option("--advertise-host", flags->advertise_host,
                     "what other ranks are told instead of --bind");
  add_parent_flag(command, flags->parent);
  command.action([flags] { return join(*flags); });
}

}  // namespace kvlane
