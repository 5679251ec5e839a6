// A link over TCP as its user sees it: one connection, or several over which its messages are
// dealt. spec/transfer.md section 10.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transfer/message.h"
#include "transfer/tcp_connection.h"

namespace kvlane {

// How long a link whose first connection was closed in order waits for the others: its peer has
// closed them as well, and what is under way on them counts.
inline constexpr Seconds kStreamsEndLimit{1};

// post(), close() and what tells from any thread, all else on the loop's. Connections hold it until
// their end.
class TcpStreams : public std::enable_shared_from_this<TcpStreams> {
 public:
  using Origin = TcpConnection::Origin;

  TcpStreams(std::shared_ptr<TcpLoop> loop, std::shared_ptr<TcpConnection> first, Origin origin);

  // As Link's.
  Status post(std::shared_ptr<const Bytes> message);
  void close();
  const std::string& peer() const { return peer_; }
  LinkPath path() const;
  std::optional<LinkSpeed> speed() const;
  int streams() const;
  bool is_over() const;
  std::uint32_t streams_wanted() const;
  std::optional<StreamKey> stream_key();
  void add_streams(const StreamKey& key);

  // An accepted link begins.
  void start(std::shared_ptr<LinkEvents> events);
  // Opens the first connection.
  void connect(const Address& address, std::shared_ptr<LinkEvents> events);
  // The network ends.
  void stop();
  // The first connection's.
  SharedListener::Match take(const SharedOffer& offer, std::shared_ptr<SharedAgreement> agreement);

 private:
  class Ear;
  struct Stream {
    std::shared_ptr<TcpConnection> connection;  // null: there is none of this number
    bool joined = false;                        // it carries messages
    // Of this side's messages, JOIN and FENCE apart.
    std::uint64_t posted = 0;
    // Of a connection that is not the first: what of `posted` the first one waits for, and which
    // of the first one's messages it waits for itself.
    std::uint64_t posted_told = 0;
    std::uint64_t control_told = 0;
    // Of the peer's messages. Only the loop's thread.
    std::uint64_t delivered = 0;
    Fence fence;  // not empty: it waits for others
    bool ended = false;
  };
  using Error = boost::system::error_code;

  TransferId key() const;
  std::optional<Fence> fence_before(std::size_t target, bool is_slab);
  void on_message(std::size_t from, ByteView bytes);
  void on_fence(std::size_t from, ByteView bytes);
  bool is_met(const Fence& fence) const;
  void release();
  void watch_fences(std::uint64_t delivered, int checks);
  void on_join(std::size_t from, ByteView bytes);
  Status take_in(std::size_t number, const std::shared_ptr<TcpConnection>& connection);
  void open_more(const StreamKey& key);
  void forget_unjoined();
  void on_written();
  void on_closed(std::size_t from, Status why);
  void finish(Status why, bool orderly);
  void refuse(std::size_t from, const Status& why);
  void forget_user();
  void forget_user_if_closed();
  std::size_t standing() const;
  std::shared_ptr<TcpStreams> find(const TransferId& id) const;

  const std::shared_ptr<TcpLoop> loop_;
  const Origin origin_;
  const std::string peer_;

  // On the loop's thread only.
  std::shared_ptr<LinkEvents> events_;       // null when nobody wants to hear any more
  boost::asio::steady_timer joining_until_;  // of connections that were opened to join
  boost::asio::steady_timer fence_watch_;
  boost::asio::steady_timer ending_until_;
  std::uint64_t delivered_ = 0;  // on all connections
  bool watching_ = false;        // fence_watch_ runs

  // Guards the rest, except for what a Stream says; connections come and go on the loop's thread.
  mutable std::mutex mutex_;
  std::array<Stream, kLinkStreamsMax> streams_;
  std::uint64_t control_ = 0;  // posted on the first connection when the last but SLABs was
  TransferId key_{};           // not zero: connections join with it
  bool refused_ = false;       // a post() was, on_writable is owed
  bool over_ = false;          // nothing is posted any more
  bool closed_ = false;        // close() was called
};

}  // namespace kvlane
