// One link of an endpoint: its handshake and what waits to be posted on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "transfer/link.h"

namespace kvlane {

class EndpointCore;
class Outgoing;

// Messages without frames that wait for a link; beyond, the peer does not read.
inline constexpr std::size_t kBacklogMax = 4096;

// The events come from the network's thread; the data members are guarded by the endpoint's lock.
class Session : public LinkEvents, public std::enable_shared_from_this<Session> {
 public:
  enum class State {
    kGreeting,  // connector: waits for HELLO_ACK; acceptor: for HELLO
    kReady,
    kGone,
  };

  // `dialled` is where this side connected to; empty on the acceptor's side.
  Session(std::weak_ptr<EndpointCore> core, std::string dialled)
      : core_(std::move(core)), dialled_(std::move(dialled)) {}

  void on_message(ByteView message) override;
  void on_writable() override;
  void on_closed(Status why) override;

  bool is_connector() const { return !dialled_.empty(); }
  const std::string& dialled() const { return dialled_; }

  State state = State::kGreeting;
  std::shared_ptr<Link> link;
  bool blocked = false;  // the link refused a message; on_writable follows
  std::deque<std::shared_ptr<const Bytes>> backlog;  // messages without frames, first to go
  std::deque<std::shared_ptr<Outgoing>> ready;       // transfers with something to post, in turn
  TimePoint opened{};
  TimePoint last_hello{};
  TimePoint last_used{};   // by a transfer
  TimePoint last_heard{};  // of the peer: a message, or that it takes what is queued
  TimePoint last_moved{};  // a message of the peer about a transfer that is known
  bool silent = false;     // it owed a transfer something for so long that it counts as gone

 private:
  const std::weak_ptr<EndpointCore> core_;
  const std::string dialled_;
};

}  // namespace kvlane
