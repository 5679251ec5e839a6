// The network as transfers see it: links that carry whole messages between two workers.
//
// Nothing blocks. A link may deliver messages late, out of order or not at all (a real network with
// several streams does; the test double does on purpose), but never altered and never twice; the
// transfer protocol above it notices and repairs. Implementations: transfer/tcp.h, transfer/test_link.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// A name or numeric address, and a port. Where to listen, and where peers are told to connect, are
// separate settings.
struct Address {
  std::string host;
  std::uint16_t port = 0;

  friend bool operator==(const Address&, const Address&) = default;
};

// "host:port", with brackets around an IPv6 host.
std::string to_string(const Address& address);

// Who is told what happens on a link. Calls come from the network's own thread, one at a time for one
// link, and must not block.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void on_message(Bytes message) = 0;
  // The link is gone: nothing follows. An orderly close by the peer is kAborted.
  virtual void on_closed(Status why) = 0;
};

// One connection. Thread-safe.
class Link {
 public:
  virtual ~Link() = default;  // closes
  // Queues a whole message. kExhausted when the queue's limit is reached, kUnavailable after the end.
  // The bytes are shared: one frame can be parked and posted at once.
  virtual Status post(std::shared_ptr<const Bytes> message) = 0;
  virtual void close() = 0;
};

// Where links come from.
class Network {
 public:
  virtual ~Network() = default;  // closes all its links; no event is delivered afterwards

  // Called for every accepted link; returns who listens to it.
  using Acceptor = std::function<std::shared_ptr<LinkEvents>(std::shared_ptr<Link>)>;

  // Listens; the address that was bound (with the real port when 0 was asked for).
  virtual Result<Address> listen(const Address& address, Acceptor acceptor) = 0;

  // Returns at once; failure to connect within the network's time limit is reported by on_closed.
  // Messages posted before the connection stands are sent when it does.
  virtual Result<std::shared_ptr<Link>> connect(const Address& peer,
                                                std::shared_ptr<LinkEvents> events) = 0;
};

}  // namespace kvlane
