// One TCP connection that carries messages, or keeps watch while memory that both sides share does:
// reading, writing, connecting and ending.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transfer/message.h"
#include "transfer/shared_listener.h"
#include "transfer/shared_offer.h"
#include "transfer/tcp.h"

namespace kvlane {

class TcpStreams;

// What a network shares with its links, which may outlive it, ended.
struct TcpLoop {
  explicit TcpLoop(const TcpOptions& tcp_options) : options(tcp_options) {}
  const TcpOptions options;
  boost::asio::io_context io{1};
  std::atomic<int> accepted = 0;  // connections

  // On the loop's thread only.
  bool stopping = false;
  std::vector<std::weak_ptr<TcpStreams>> links;
};

// Who is told what happens on one connection, on the loop's thread. The connection keeps it until
// its end.
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  // The bytes are gone when the call returns. Their header is checked.
  virtual void on_message(ByteView message) = 0;
  // The system has taken some of what was queued.
  virtual void on_written() = 0;
  // As LinkEvents::on_closed().
  virtual void on_closed(Status why) = 0;
};

// post(), close(), queued_bytes(), peer(), path() and speed() from any thread, all else on the
// loop's. Handlers hold the connection, so it lives until its socket is closed.
class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  enum class Origin {
    kAccepted,
    kOpened,   // for a link of its own
    kJoining,  // for a link that stands: over TCP whatever the options say
  };

  TcpConnection(std::shared_ptr<TcpLoop> loop, Socket socket, std::string peer, Origin origin);
  ~TcpConnection();

  // Without a limit: that is the link's.
  Status post(std::shared_ptr<const Bytes> message);
  void close();
  const std::string& peer() const { return peer_; }
  LinkPath path() const;
  std::optional<LinkSpeed> speed() const;
  std::size_t queued_bytes() const;

  // Begins to read on an accepted socket.
  void start(std::shared_ptr<ConnectionEvents> events);
  // Looks up, connects, begins to read.
  void connect(const Address& address, std::shared_ptr<ConnectionEvents> events);
  // Another listener takes over.
  void attach(std::shared_ptr<ConnectionEvents> events) { events_ = std::move(events); }
  // From within on_message(): nothing is read behind this message until resume().
  void pause() { paused_ = true; }
  void resume();
  // From within on_message(): the peer broke the protocol. It is told, on_closed() follows.
  void refuse_soon(const Status& why);
  // Ends at once, without a word to anybody.
  void drop() { end(); }
  // The other end, once connected.
  Address remote() const;
  // The network ends: no more events, what is queued is still sent if that is quick.
  void stop();
  // Takes an offer of shared memory, if it means this connection and comes in time.
  SharedListener::Match take(const SharedOffer& offer, std::shared_ptr<SharedAgreement> agreement);

 private:
  using Error = boost::system::error_code;
  using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

  void connect_to(const Endpoints& endpoints);
  void established();
  void offer_memory();
  void on_agreed(std::shared_ptr<SharedStream> stream);
  void on_stray(const Error& error, std::size_t bytes);
  void watch();
  void read_header();
  void read_body(std::size_t bytes);
  void on_header(const Error& error, std::size_t bytes);
  void on_body(const Error& error);
  void discard();
  void wake_writer();
  void start_write();
  void write(std::size_t total);
  void on_written(const Error& error);
  void measure(std::size_t bytes);
  void begin_closing(Seconds limit);
  void refuse(const Status& why, std::shared_ptr<const Bytes> answer);
  void fail(Status why);
  void end();
  void end_after(Seconds limit, Status why);
  Status broke(const Error& error, const char* where) const;
  bool is_closing() const;

  const std::shared_ptr<TcpLoop> loop_;
  const std::string peer_;
  const Origin origin_;

  // On the loop's thread only.
  Socket socket_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer deadline_;        // of connecting, later of closing
  std::shared_ptr<ConnectionEvents> events_;  // null when nobody wants to hear any more
  bool connected_ = false;
  bool paused_ = false;  // no read is under way
  bool stopping_ = false;
  bool wrote_ = false;                          // something over TCP
  std::shared_ptr<SharedAgreement> agreement_;  // under way: nothing is written until it is over
  std::shared_ptr<SharedStream> shared_;        // then it carries messages, TCP nothing
  bool first_message_ = true;
  std::array<std::byte, kMessageHeaderBytes> header_{};
  Bytes message_;                  // that is being read, in memory that only grows
  std::size_t message_bytes_ = 0;  // of it
  std::vector<std::shared_ptr<const Bytes>> in_flight_;

  // Guards the rest.
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const Bytes>> queue_;
  std::size_t queued_bytes_ = 0;  // in queue_ and in_flight_
  bool writing_ = false;          // start_write is scheduled or a write is under way
  bool closing_ = false;          // close() was called
  bool ended_ = false;            // the socket is closed
  LinkPath path_ = LinkPath::kTcp;
  LinkSpeedMeter meter_;
};

}  // namespace kvlane
