// One UCX endpoint that carries messages: sending, receiving, asking a silent peer, and ending.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "transfer/message.h"
#include "transfer/ucx_inbox.h"
#include "transfer/ucx_worker.h"

namespace kvlane {

// A message's header and number; magic, kind and number of a control message.
inline constexpr std::size_t kUcxMessageHeaderBytes = kMessageHeaderBytes + 8;
inline constexpr std::size_t kUcxControlHeaderBytes = 16;
// Of a network's silence limit passes between two ticks of its connections.
inline constexpr int kUcxTicksOfSilence = 4;

// post(), close(), peer(), speed() and is_closing() from any thread, all else on the network's. The
// network holds a connection until gone(): UCX knows it by its address.
class UcxConnection : public std::enable_shared_from_this<UcxConnection> {
 public:
  UcxConnection(std::shared_ptr<UcxLoop> loop, std::string peer, bool accepted);
  ~UcxConnection();

  Status post(std::shared_ptr<const Bytes> message);
  void close();
  const std::string& peer() const { return peer_; }
  std::optional<LinkSpeed> speed() const;
  bool is_closing() const;  // or has ended

  // Takes over a peer's request, which it has to answer for in any case.
  void accept(ucp_conn_request_h request, std::shared_ptr<LinkEvents> events);
  // Looks up, connects.
  void connect(const Address& address, std::shared_ptr<LinkEvents> events);
  // The network ends: no more events, what is queued is still sent if that is quick.
  void stop();
  // A part of the silence limit has passed.
  void tick();
  // Does what calls out of UCX have left to do.
  void work();
  // UCX knows nothing of it any more.
  bool gone() const;
  // What is done for connections of a network that has lost patience.
  void end();

  // From within UCX. A message, a control message or one with an id of neither has come.
  static ucs_status_t on_message(void* loop, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t on_control(void* loop, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t on_unknown(void* loop, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);

 private:
  enum class Control : std::uint8_t { kPing = 1, kPong = 2, kClose = 3, kClosed = 4 };
  // A message under way.
  struct Sending {
    UcxConnection* connection = nullptr;
    std::shared_ptr<const Bytes> message;
    Bytes header;  // UCX's, of which that of the message is the begin
    bool done = false;
  };

  static UcxConnection* find(void* loop, const ucp_am_recv_param_t* param);
  static void on_error(void* connection, ucp_ep_h endpoint, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_control_sent(void* request, ucs_status_t status, void* connection);
  static void on_endpoint_closed(void* request, ucs_status_t status, void* connection);

  void open(ucp_ep_params_t& params);
  void connect_to(const boost::asio::ip::tcp::endpoint& address);
  void make_room();
  void changed();
  void heard();
  bool listens() const;
  ucs_status_t receive(ByteView header, void* data, std::size_t bytes, bool is_rendezvous);
  Status check(ByteView header, std::size_t bytes, bool is_rendezvous) const;
  void receive(Control control, std::uint64_t number);
  void refuse_later(Status why);
  void deliver();
  bool send();
  void start(Sending& sending);
  void sent(Sending& sending, ucs_status_t status);
  void send(Control control);
  void measure();
  void begin_closing(Seconds limit);
  void refuse(const Status& why);
  void fail(Status why);
  void peer_closed();
  void end_after(Seconds limit, Status why);

  const std::shared_ptr<UcxLoop> loop_;
  const std::string peer_;
  const bool accepted_;

  // On the network's thread only.
  bool takes_room_;  // of those that may be accepted
  ucp_ep_h endpoint_ = nullptr;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer deadline_;  // of connecting, later of closing
  std::shared_ptr<LinkEvents> events_;  // null when nobody wants to hear any more
  UcxInbox inbox_;
  std::deque<std::unique_ptr<Sending>> in_flight_;
  std::size_t in_flight_bytes_ = 0;
  std::uint64_t sent_ = 0;  // messages that UCX was given
  Bytes close_header_;
  std::size_t outstanding_ = 0;      // requests of UCX that are not of inbox_
  std::uint64_t fetched_bytes_ = 0;  // by the peer
  std::optional<ucs_status_t> broken_;
  Status refused_;
  int silent_ticks_ = 0;
  bool changed_ = false;     // it is in loop_->changed
  bool heard_ = false;       // anything of the peer
  bool close_sent_ = false;  // CLOSE, or CLOSED to the peer's
  bool answered_ = false;    // by CLOSED

  // Guards the rest.
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const Bytes>> queue_;
  std::size_t queued_bytes_ = 0;  // in queue_ and in_flight_
  bool refused_post_ = false;     // on_writable is owed
  bool posted_ = false;           // work() is on its way
  bool closing_ = false;          // close() was called
  bool ended_ = false;
  LinkSpeedMeter meter_;
};

}  // namespace kvlane
