// Ranks that are threads of one process: what they hand each other is copied where it lies. For
// tests; each rank's calls come from a thread of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <cstring>
#include <memory>
#include <semaphore>
#include <vector>

#include "model/part.h"
#include "model/rank_exchange.h"

namespace kvlane {

class LocalRanks {
 public:
  LocalRanks(int stages, int ranks) {
    for (int stage = 0; stage < stages; ++stage) {
      stages_.push_back(std::make_unique<Stage>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        exchanges_.push_back(std::make_unique<Exchange>(*this, stage, rank));
      }
    }
  }
  // Ends before the group.
  RankExchange* exchange(const ModelPart& part) {
    return exchanges_[part.stage * part.ranks + part.rank].get();
  }

 private:
  struct Rank {
    ByteView own;
    ByteView hidden;
    std::binary_semaphore sent{0}, taken{0};
  };
  struct Stage {
    explicit Stage(int count) : met(count), ranks(count) {}
    std::barrier<> met;
    std::vector<Rank> ranks;
  };

  class Exchange final : public RankExchange {
   public:
    Exchange(LocalRanks& group, int stage, int rank) : group_(group), stage_(stage), rank_(rank) {}

    Status gather(ByteView own, int rows, std::size_t row_bytes, std::byte* whole) override {
      Stage& stage = *group_.stages_[stage_];
      stage.ranks[rank_].own = own;
      stage.met.arrive_and_wait();
      std::size_t at = 0;
      for (const Rank& rank : stage.ranks) {
        const std::size_t bytes = rank.own.size() / rows;
        for (int row = 0; bytes > 0 && row < rows; ++row) {
          std::memcpy(whole + row * row_bytes + at, rank.own.data() + row * bytes, bytes);
        }
        at += bytes;
      }
      stage.met.arrive_and_wait();
      if (at != row_bytes) return internal_error("shares of a row do not add up to it");
      return {};
    }
    Status receive(std::byte* hidden, std::size_t bytes) override {
      Rank& from = group_.stages_[stage_ - 1]->ranks[rank_];
      from.sent.acquire();
      const bool fits = from.hidden.size() == bytes;
      if (fits) std::memcpy(hidden, from.hidden.data(), bytes);
      from.taken.release();
      return fits ? Status() : internal_error("a stage sent another number of rows");
    }
    Status send(ByteView hidden) override {
      Rank& own = group_.stages_[stage_]->ranks[rank_];
      own.hidden = hidden;
      own.sent.release();
      own.taken.acquire();
      return {};
    }

   private:
    LocalRanks& group_;
    const int stage_;
    const int rank_;
  };

  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
};

}  // namespace kvlane
