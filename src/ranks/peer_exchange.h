// Values between the ranks of one worker, over links (spec/ranks.md section 3).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "model/part.h"
#include "model/rank_exchange.h"
#include "ranks/letter.h"
#include "ranks/rank_link.h"

namespace kvlane {

// The numbers of all ranks that this one has links to: those of its stage, and its neighbours in
// the stages before and behind.
std::vector<int> peers_of(const ModelPart& part);
inline int number_of(const ModelPart& part) { return part.stage * part.ranks + part.rank; }

// Passes from one thread; the other calls from any.
class PeerExchange final : public RankExchange {
 public:
  // A rank that hears nothing for `patience` of one that computes the same layer gives up.
  explicit PeerExchange(const ModelPart& part, Seconds patience = Seconds(120))
      : part_(part), patience_(patience) {}

  // kInvalidArgument when `rank` is no peer, or is there already.
  Status add(int rank, std::shared_ptr<RankLink> link);
  // Whether all peers are there, and whether this link is one's.
  bool complete() const;
  bool has(const RankLink& link) const;
  // Tells that peer which rank this is.
  Status greet(int rank) { return send_to(rank, encode_peer(number_of(part_))); }
  // A VALUES letter of that rank.
  Status deliver(int rank, Bytes letter);
  // Whoever waits, now or later, gets this error. Links are closed, so that peers notice.
  void fail(const Status& why);

  Status gather(ByteView own, int rows, std::size_t row_bytes, std::byte* whole) override;
  Status receive(std::byte* hidden, std::size_t bytes) override;
  Status send(ByteView hidden) override;

 private:
  Status send_to(int rank, ByteView letter);
  Result<Bytes> take_from(int rank, Seconds patience);

  const ModelPart part_;
  const Seconds patience_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::shared_ptr<RankLink>> links_;
  std::map<int, std::deque<Bytes>> letters_;  // that nobody has taken yet
  Status failed_;
};

}  // namespace kvlane
