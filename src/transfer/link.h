// The network as transfers see it: links that carry whole messages between two workers.
//
// Nothing blocks. A link may deliver messages late, out of order or not at all (links with several
// streams change the order of SLABs; the test double all of it, on purpose), but never altered and
// never twice; the transfer protocol above it notices and repairs. Implementations: transfer/tcp.h,
// transfer/ucx.h,
// transfer/test_link.h.
//
// One thread, "the network's thread", makes all calls out of a network: events of every link,
// acceptors and timers, one after another. What they are given must not block it for long and must
// not throw.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "kvlane/status.h"
#include "transfer/link_speed.h"

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

// Who is told what happens on a link, from the network's thread. The link keeps it until its end.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  // The bytes are gone when the call returns.
  virtual void on_message(ByteView message) = 0;
  // After a post() was refused with kExhausted: there is room again.
  virtual void on_writable() {}
  // The link is gone: nothing follows. An orderly close by the peer is kAborted. Not called for a
  // link that was closed on this side.
  virtual void on_closed(Status why) = 0;
};

// How long a closed link waits for its peer to take the last messages and to say so; and the same
// where its network ends.
inline constexpr Seconds kLingerLimit{1};
inline constexpr Seconds kStopLimit{0.25};

// What carries the messages of a link.
enum class LinkPath { kTcp, kSharedMemory, kUcx };

// Connections of one link: as many as may help on a fast network with several paths.
inline constexpr std::uint32_t kLinkStreamsMax = 16;

// By which further connections join a link: spec/transfer.md section 10.
struct StreamKey {
  std::array<std::uint8_t, 16> id{};
  std::uint32_t streams_max = 1;  // connections of the link, the first included
};

// As Link::post() takes them.
inline std::shared_ptr<const Bytes> share(Bytes message) {
  return std::make_shared<const Bytes>(std::move(message));
}

// One connection, or several that belong together. Thread-safe. No call into LinkEvents comes from
// within one of these, so they may be made with locks held.
class Link {
 public:
  virtual ~Link() = default;  // closes
  // Queues a whole message (spec/transfer.md section 2). kExhausted when the queue is full
  // (on_writable follows), kUnavailable after the end. The bytes are shared: one frame can be
  // parked and posted at once.
  virtual Status post(std::shared_ptr<const Bytes> message) = 0;
  // Whether post() says kUnavailable. on_closed follows, unless this side has closed it, and before
  // that what is still on its way.
  virtual bool is_over() const = 0;
  // Sends what is queued, then ends the link. No further event is started, one that runs may
  // finish.
  virtual void close() = 0;
  // Who is at the other end, for messages to people: "127.0.0.1:4711".
  virtual std::string peer() const = 0;
  // What carries messages now. A link begins as kTcp, unless it is kUcx for good.
  virtual LinkPath path() const { return LinkPath::kTcp; }
  // Connections that carry messages now, in this direction.
  virtual int streams() const { return 1; }
  // How many this side would like its link to have, told in the handshake.
  virtual std::uint32_t streams_wanted() const { return 1; }
  // The acceptor's: what further connections have to show. Empty when there can be none.
  virtual std::optional<StreamKey> stream_key() { return std::nullopt; }
  // The connector's: opens further ones with what the acceptor told. The link goes on meanwhile,
  // and with those it has where that fails.
  virtual void add_streams(const StreamKey& key) { (void)key; }
  // How fast it was in this direction when it was the bottleneck; empty while it never was.
  virtual std::optional<LinkSpeed> speed() const = 0;
};

// Where links come from, and the clock that goes with them. Thread-safe. Links and tasks may
// outlive it, dead.
class Network {
 public:
  // Closes all its links and drops its tasks; nothing is called afterwards. Not from its own
  // thread.
  virtual ~Network() = default;

  // Called for every accepted link; returns who listens to it, or null to refuse it.
  using Acceptor = std::function<std::shared_ptr<LinkEvents>(std::shared_ptr<Link>)>;

  // Listens until the network ends; the address that was bound (with the real port when 0 was asked
  // for).
  virtual Result<Address> listen(const Address& address, Acceptor acceptor) = 0;

  // Returns at once; failure to connect within the network's time limit is reported by on_closed.
  // Messages posted before the connection stands are sent when it does.
  virtual Result<std::shared_ptr<Link>> connect(const Address& peer,
                                                std::shared_ptr<LinkEvents> events) = 0;

  // Deadlines are measured on this clock, so that tests need not wait for them.
  virtual TimePoint now() const = 0;
  // Calls `task` once from the network's thread, `delay` from now.
  virtual void call_after(Seconds delay, std::function<void()> task) = 0;
};

}  // namespace kvlane
