// A group of ranks on this host, or one that comes from elsewhere.
// SPDX-License-Identifier: Apache-2.0
#include "cli/worker_ranks.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "server/http.h"
#include "transfer/tcp.h"

namespace kvlane {
namespace {

constexpr Seconds kRanksStopPatience{5};

}  // namespace

Status check_ranks(const ModelFlags& flags) {
  if (!has_ranks(flags)) {
    if (flags.ranks_bind.empty()) return {};
    return invalid_argument("--ranks-bind is for ranks: give --tp or --pp as well");
  }
  const auto refuse = [](const std::string& what) {
    return unsupported("--tp and --pp are not for " + what);
  };
  if (flags.device != "cpu") return refuse("devices yet");
  if (!flags.kv_evict.empty()) return refuse("caches that evict tokens");
  if (flags.zack_online > 0) return refuse("axes of a prompt's own");
  return {};
}

Result<TransferId> ranks_key(const ModelFlags& flags) {
  const auto key = parse_transfer_id(flags.ranks_key);
  if (key.ok()) return *key;
  return invalid_argument(
      "the environment variable KVLANE_RANKS_KEY has to hold the key of the group: 32 lower-case "
      "hexadecimal digits, the same for the head and all ranks");
}

Result<std::unique_ptr<WorkerRanks>> WorkerRanks::start(const ModelFlags& flags) {
  std::unique_ptr<WorkerRanks> ranks(new WorkerRanks);
  ranks->descriptor_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (ranks->descriptor_ < 0) return exhausted("the system gives no eventfd");
  RankGroupOptions options;
  options.stages = flags.pipeline_parallel;
  options.ranks = flags.tensor_parallel;
  options.alive = [raw = ranks.get()] { return raw->alive(); };
  options.on_lost = [descriptor = ranks->descriptor_](const Status&) {
    const std::uint64_t one = 1;
    (void)!::write(descriptor, &one, sizeof one);
  };
  const bool local = flags.ranks_bind.empty();
  if (!local) {
    KVLANE_ASSIGN(options.bind, parse_address(flags.ranks_bind));
    KVLANE_ASSIGN(options.key, ranks_key(flags));
  } else {
    options.key = random_transfer_id();
  }
  const std::string key = to_string(options.key);
  KVLANE_ASSIGN(std::unique_ptr<Network> network, make_tcp_network());
  KVLANE_ASSIGN(ranks->group_, RankGroup::listen(std::move(network), std::move(options)));
  if (local) KVLANE_TRY(ranks->start_processes(flags, key));
  return ranks;
}

Status WorkerRanks::start_processes(const ModelFlags& flags, const std::string& key) {
  const int count = flags.tensor_parallel * flags.pipeline_parallel;
  ModelFlags own = flags;
  if (own.threads == 0) {
    own.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / count);
  }
  for (int rank = 0; rank < count; ++rank) {
    std::vector<std::string> arguments = to_part_arguments(own);
    const std::vector<std::string> store = to_arguments(own.state);
    arguments.insert(arguments.end(), store.begin(), store.end());
    arguments.insert(arguments.begin(), "rank");
    arguments.insert(arguments.end(),
                     {"--rank", std::to_string(rank), "--head", to_string(group_->address()),
                      "--parent", std::to_string(::getpid())});
    KVLANE_ASSIGN(ChildProcess process,
                  ChildProcess::start("process of rank " + std::to_string(rank),
                                      std::move(arguments), {"KVLANE_RANKS_KEY=" + key}));
    processes_.push_back(std::move(process));
  }
  return {};
}

// Whether the processes that were started are there.
Status WorkerRanks::alive() const {
  for (const ChildProcess& process : processes_) {
    pollfd entry{process.descriptor(), POLLIN, 0};
    if (::poll(&entry, 1, 0) > 0) return unavailable("the " + process.name() + " has ended");
  }
  return {};
}

WorkerRanks::~WorkerRanks() {
  group_.reset();
  for (ChildProcess& process : processes_) process.wait(kRanksStopPatience);
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace kvlane
