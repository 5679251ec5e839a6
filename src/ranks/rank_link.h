// A link between two processes of a worker that carries letters (spec/ranks.md section 1): of any
// size, in order, and sending waits while the link is full.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/bytes.h"
#include "kvlane/status.h"
#include "transfer/endpoint.h"
#include "transfer/link.h"

namespace kvlane {

// Thread-safe.
class RankLink final : public LinkEvents, public std::enable_shared_from_this<RankLink> {
 public:
  // From the network's thread, but that a link which is stuck may end on a sender's. `on_letter`
  // gets letters in the order in which they were sent; an error ends the link. `on_end` is told
  // once why there is nothing more, unless close() ended it.
  using OnLetter = std::function<Status(RankLink& link, Bytes letter)>;
  using OnEnd = std::function<void(RankLink& link, const Status& why)>;

  // Accepted: `link` is what the acceptor got. It ends when no letter has come after ten seconds,
  // so that strangers do not keep the places of ranks.
  static std::shared_ptr<RankLink> accept(Network& network, const TransferId& key,
                                          std::shared_ptr<Link> link, OnLetter on_letter,
                                          OnEnd on_end);
  static Result<std::shared_ptr<RankLink>> connect(Network& network, const Address& peer,
                                                   const TransferId& key, OnLetter on_letter,
                                                   OnEnd on_end);

  // Returns when the letter is in the link's queue; not from the network's thread. The error that
  // ended the link, which a peer that takes nothing for a minute does. kInvalidArgument for letters
  // above the limit of the spec.
  Status send(ByteView letter);
  // Ends the link; what is queued is still sent.
  void close();
  std::string peer() const;

  void on_message(ByteView message) override;
  void on_writable() override;
  void on_closed(Status why) override;

 private:
  RankLink(const TransferId& key, OnLetter on_letter, OnEnd on_end)
      : key_(key), on_letter_(std::move(on_letter)), on_end_(std::move(on_end)) {}
  Status post(std::shared_ptr<const Bytes> message);
  Status take(ByteView message, bool& told);
  Status add(ByteView piece);
  void end(const Status& why, bool tells);

  const TransferId key_;
  const OnLetter on_letter_;
  const OnEnd on_end_;

  std::mutex sending_;  // one letter at a time
  std::uint64_t sent_ = 0;

  // The network's thread alone: pieces that came too early, and the letter that is being read.
  std::map<std::uint64_t, Bytes> early_;
  std::uint64_t next_ = 0;
  std::uint64_t letter_bytes_ = 0;
  Bytes letter_;
  bool heard_ = false;  // a letter

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Link> link_;  // null: ended
  bool full_ = false;
  Status ended_;
};

}  // namespace kvlane
