// Ranks of a group on threads of this process, over TCP, for tests of what a head makes of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks/rank_group.h"
#include "ranks/rank_process.h"
#include "transfer/tcp.h"

namespace kvlane::ranks_fixture {

inline TransferId key_of(std::uint8_t number) {
  TransferId key;
  key.bytes.fill(number);
  return key;
}

// A head with ranks that have their parts of the model in a directory.
class RankThreads {
 public:
  // Whatever else a rank is told, of its part; its own thread calls it.
  using Tell = std::function<void(const Model& part, RankProcessOptions& options)>;

  RankThreads(const std::filesystem::path& model, int stages, int ranks, const Tell& tell = {},
              TransferId key = key_of(1)) {
    RankGroupOptions options;
    options.stages = stages;
    options.ranks = ranks;
    options.key = key_of(1);
    options.join_patience = Seconds(20);
    auto listening = RankGroup::listen(make_network(), std::move(options));
    EXPECT_TRUE(listening.ok()) << listening.status().message();
    group = std::move(*listening);
    for (int number = 0; number < stages * ranks; ++number) {
      threads.emplace_back([this, model, key, tell, head = group->address(),
                            part = ModelPart{stages, number / ranks, ranks, number % ranks}] {
        // Ends on this thread: that takes a moment, and all ranks can have it at once.
        const auto network = make_network();
        auto own = Model::load(model, {.isa = best_isa(), .part = part});
        EXPECT_TRUE(own.ok()) << own.status().message();
        RankProcessOptions to_rank;
        to_rank.head = head;
        to_rank.key = key;
        to_rank.patience = Seconds(60);
        to_rank.make_format = [](const std::string&) {
          return Result<std::shared_ptr<const KvFormat>>(nullptr);
        };
        if (tell) tell(**own, to_rank);
        const Status ended = run_rank(*network, **own, to_rank);
        const std::lock_guard lock(mutex);
        ends.push_back(ended);
      });
    }
  }
  ~RankThreads() { end(); }
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  void join() {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
  void end() {
    group.reset();
    join();
  }

  static std::unique_ptr<Network> make_network() {
    auto network = make_tcp_network();
    EXPECT_TRUE(network.ok()) << network.status().message();
    return std::move(*network);
  }

  std::unique_ptr<RankGroup> group;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<Status> ends;  // of ranks
};

}  // namespace kvlane::ranks_fixture
