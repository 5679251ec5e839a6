// The endpoint itself: its transfers, its links, and the rules of spec/transfer.md between them.
//
// Locks. One mutex guards everything. It is never held while a sink, a callback or another piece of
// the user's code runs, or is destroyed. Functions that take a Lock may release it and take it
// again: what they were told about may have changed when they return. All others keep it. The
// network's calls (post, close, connect, call_after) never call back from within and are made with
// the mutex held; the order of locks is endpoint, then network.
//
// Calls to the user are made on the network's thread only, one at a time: `called_` names the
// transfer whose sink or callback is running, and cancel() and stop() wait for it, as does whoever
// uses the id of a transfer whose last call that is. So a transfer in the maps below stays there
// until its last call has returned.
//
// Implemented in endpoint.cpp (the user's calls), endpoint_links.cpp (links, handshake, time),
// endpoint_sending.cpp and endpoint_receiving.cpp (the two roles).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "transfer/endpoint.h"
#include "transfer/incoming.h"
#include "transfer/message.h"
#include "transfer/message_memory.h"
#include "transfer/outcomes.h"
#include "transfer/outgoing.h"
#include "transfer/session.h"

namespace kvlane {

// Per role; each may hold a map of its slabs.
inline constexpr std::size_t kTransfersMax = 4096;
inline constexpr std::size_t kDialledMax = 256;
// Heartbeats within the idle limit: so many chances on a network that loses messages.
inline constexpr int kHeartbeatsPerIdle = 16;
// A transfer of which nothing is heard is kept for so many idle limits while others of its link
// move.
inline constexpr int kIdleLimitsBehindOthers = 6;
// A link without transfers is closed by its connector after so long.
inline constexpr Seconds kIdleLinkLimit{300};

class EndpointCore : public std::enable_shared_from_this<EndpointCore> {
 public:
  using SessionPtr = std::shared_ptr<Session>;
  using OutgoingPtr = std::shared_ptr<Outgoing>;
  using IncomingPtr = std::shared_ptr<Incoming>;

  EndpointCore(Network& network, EndpointOptions options);

  // The user's calls.
  Status start();
  void stop();
  Address address() const { return hello_.address; }
  Result<OutgoingPtr> push(const Address& peer, const TransferId& id, const TransferBegin& begin,
                           std::size_t bytes_max, OnDelivered on_delivered);
  Result<OutgoingPtr> park(const TransferId& id, const TransferBegin& begin, std::size_t bytes_max,
                           OnDelivered on_delivered);
  std::size_t outgoing_bytes_max() const { return options_.outgoing_bytes_max; }
  std::size_t outgoing_bytes_free() const;
  std::optional<LinkSpeed> link_speed(const std::optional<Address>& peer) const;
  LinkCounts links() const;
  Status add_slab(const OutgoingPtr& outgoing, FrameHeader header, const BodyWriter& body);
  void finish(const OutgoingPtr& outgoing, TransferEnd end);
  void fail(const OutgoingPtr& outgoing, const Status& why);
  void abandon(const OutgoingPtr& outgoing);
  Status expect(const TransferId& id, Seconds wait, std::shared_ptr<TransferSink> sink, bool room);
  Status grant(const TransferId& id, const TransferSink& sink);
  Status fetch(const Address& peer, const TransferId& id, std::shared_ptr<TransferSink> sink);
  void cancel(const TransferId& id, const TransferSink& sink);

  // The links' events.
  void on_message(const SessionPtr& session, ByteView bytes);
  void on_writable(const SessionPtr& session);
  void on_closed(const SessionPtr& session, const Status& why);

 private:
  using Lock = std::unique_lock<std::mutex>;

  // endpoint.cpp
  Lock lock_for_new(const TransferId& id);
  Status check_new(const TransferId& id, const TransferBegin& begin, std::size_t bytes_max) const;
  OutgoingPtr keep_outgoing(const TransferId& id, const TransferBegin& begin, std::size_t bytes_max,
                            OnDelivered on_delivered);
  Status keep_slab(const OutgoingPtr& outgoing, const SlabName& slab,
                   std::shared_ptr<const Bytes> message);
  Status check_new_incoming(const TransferId& id, const TransferSink* sink) const;
  template <class Call>
  void call_out(Lock& lock, const void* whom, Call call);
  void forget(const IncomingPtr& incoming);

  // endpoint_links.cpp
  std::shared_ptr<LinkEvents> accept(std::shared_ptr<Link> link);
  Result<SessionPtr> dial(const Address& peer);
  void say_hello(const SessionPtr& session);
  void greet(Lock& lock, const SessionPtr& session, const Message& message);
  void on_hello(Lock& lock, const SessionPtr& session, const Message& message);
  void on_hello_ack(Lock& lock, const SessionPtr& session, const Message& message);
  void on_link_error(Lock& lock, const SessionPtr& session, const Message& message);
  void dispatch(Lock& lock, const SessionPtr& session, const Message& message);
  std::optional<Status> mismatch(const SessionPtr& session, const Hello& peer) const;
  void link_ready(const SessionPtr& session);
  // The peer broke the protocol, or is not one of ours: it is told, the link ends.
  void refuse(Lock& lock, const SessionPtr& session, const Status& why, const Bytes& answer);
  void refuse(Lock& lock, const SessionPtr& session, const Status& why);
  void report_refused(Lock& lock, const SessionPtr& session, const Status& why);
  // The link and its transfers end.
  void end_session(Lock& lock, const SessionPtr& session, const Status& why);
  void send(const SessionPtr& session, std::shared_ptr<const Bytes> message);
  void send(const SessionPtr& session, Bytes message);
  void pump(const SessionPtr& session);
  void schedule_tick();
  void tick();
  void watch_session(Lock& lock, const SessionPtr& session, TimePoint now);
  Seconds patience_with(const Session* link, TimePoint now) const;
  void note_silence(const SessionPtr& session, TimePoint now) const;
  void watch_outgoing(const OutgoingPtr& outgoing, TimePoint now);
  void watch_incoming(Lock& lock, const IncomingPtr& incoming, TimePoint now);
  Seconds heartbeat() const { return options_.idle_timeout / kHeartbeatsPerIdle; }

  // endpoint_sending.cpp
  void begin_sending(const OutgoingPtr& outgoing);
  void enlist(const OutgoingPtr& outgoing);
  void on_fetch(const SessionPtr& session, const TransferId& id);
  void on_missing(Lock& lock, const SessionPtr& session, const Message& message);
  void on_wait(const SessionPtr& session, const TransferId& id);
  void answer_not_sent(const SessionPtr& session, const TransferId& id);
  void on_done(Lock& lock, const SessionPtr& session, const Message& message);
  OutgoingPtr find_outgoing(const SessionPtr& session, const TransferId& id) const;
  // Sets the outcome, gives the frames back and has the callback called soon. With `tell`, the peer
  // gets ERROR.
  void end_outgoing(const OutgoingPtr& outgoing, Result<Durations> outcome, bool tell);
  void deliver(const OutgoingPtr& outgoing);

  // endpoint_receiving.cpp
  void ask_again(const IncomingPtr& incoming);
  void tell_missing(const IncomingPtr& incoming, const Missing& missing);
  void tell_here(const IncomingPtr& incoming);
  void on_begin(Lock& lock, const SessionPtr& session, const Message& message);
  void on_slab(Lock& lock, const SessionPtr& session, const Message& message);
  void on_end(Lock& lock, const SessionPtr& session, const Message& message);
  void on_transfer_error(Lock& lock, const SessionPtr& session, const Message& message);
  Status check_acceptable(const TransferBegin& begin) const;
  IncomingPtr find_begun(const SessionPtr& session, const TransferId& id) const;
  void answer_unknown(const SessionPtr& session, const TransferId& id);
  // False when the transfer or the endpoint ended during a call of the sink.
  bool still_running(Lock& lock, const IncomingPtr& incoming);
  void complete(Lock& lock, const IncomingPtr& incoming);
  void let_go(Lock& lock, const IncomingPtr& incoming);
  // The sink's last call. With `tell`, the peer gets ERROR.
  void fail_incoming(Lock& lock, const IncomingPtr& incoming, const Status& why, bool tell);

  Network& network_;  // not touched after stop()
  const EndpointOptions options_;
  const std::vector<std::string> codecs_;
  const std::shared_ptr<MessageMemory> memory_;
  Hello hello_;  // constant after start()

  mutable std::mutex mutex_;
  std::condition_variable call_over_;
  const void* called_ = nullptr;  // whose sink or callback runs now
  std::thread::id caller_;        // and where
  bool stopped_ = false;
  // All limits are measured on a clock that advances with the ticks, and by one heartbeat at most:
  // while the network's thread was busy or the machine asleep, messages may have waited to be read.
  TimePoint clock_{};
  TimePoint last_tick_{};
  std::size_t outgoing_bytes_ = 0;  // set aside by all outgoing transfers
  std::map<TransferId, OutgoingPtr> outgoing_;
  std::map<TransferId, IncomingPtr> incoming_;
  Outcomes outgoing_outcomes_;
  Outcomes incoming_outcomes_;
  std::map<std::string, SessionPtr> dialled_;
  std::set<SessionPtr> replaced_;  // once in dialled_, whose links are over: on_closed follows
  std::set<SessionPtr> accepted_;
};

template <class Call>
void EndpointCore::call_out(Lock& lock, const void* whom, Call call) {
  // Also if the call throws: others wait for its end.
  struct Under {
    EndpointCore& core;
    Lock& lock;
    ~Under() {
      lock.lock();
      core.called_ = nullptr;
      core.call_over_.notify_all();
    }
  };
  called_ = whom;
  caller_ = std::this_thread::get_id();
  lock.unlock();
  const Under under{*this, lock};
  call();
}

}  // namespace kvlane
