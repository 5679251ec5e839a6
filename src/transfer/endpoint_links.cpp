// The endpoint's links: opening and greeting, who gets a message, what waits for the network, and
// the clock that watches over all of it.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "crypto/sha256.h"
#include "transfer/endpoint_core.h"
#include "transfer/hex.h"
#include "transfer/seconds_text.h"

namespace kvlane {
namespace {

// Enough of a model's name for a person to tell two models apart.
std::string short_name(const ModelIdentity& model) { return to_hex(model).substr(0, 16); }

std::string describe(const Hello& hello) {
  std::string text = "worker " + hello.engine + " at " + to_string(hello.address) +
                     " holds model " + short_name(hello.model) + " in format " + hello.format;
  if (hello.tables != 0) text += " with tables " + hex_of_u64(hello.tables);
  return text;
}

}  // namespace

void Session::on_message(ByteView message) {
  if (const auto core = core_.lock()) core->on_message(shared_from_this(), message);
}
void Session::on_writable() {
  if (const auto core = core_.lock()) core->on_writable(shared_from_this());
}
void Session::on_closed(Status why) {
  if (const auto core = core_.lock()) core->on_closed(shared_from_this(), why);
}

// Opening.

std::shared_ptr<LinkEvents> EndpointCore::accept(std::shared_ptr<Link> link) {
  const auto session = std::make_shared<Session>(weak_from_this(), "");
  const Lock lock(mutex_);
  if (stopped_) return nullptr;
  session->link = std::move(link);
  session->opened = session->last_used = session->last_heard = clock_;
  accepted_.insert(session);
  return session;
}

// The link to `peer`, new or not.
Result<EndpointCore::SessionPtr> EndpointCore::dial(const Address& peer) {
  const std::string name = to_string(peer);
  if (const auto at = dialled_.find(name); at != dialled_.end()) {
    if (!at->second->silent && !at->second->link->is_over()) {
      at->second->last_used = clock_;
      return at->second;
    }
    // What its peer has sent may still come on it; what is new needs another.
    replaced_.insert(at->second);
    dialled_.erase(at);
  }
  if (dialled_.size() >= kDialledMax) {
    return exhausted("this worker already has links to " + std::to_string(kDialledMax) + " peers");
  }
  const auto session = std::make_shared<Session>(weak_from_this(), name);
  KVLANE_ASSIGN(session->link, network_.connect(peer, session));
  session->opened = session->last_used = session->last_hello = session->last_heard = clock_;
  dialled_.emplace(name, session);
  say_hello(session);
  return session;
}

// The connector's, with as many connections as it would like the link to have.
void EndpointCore::say_hello(const SessionPtr& session) {
  Hello hello = hello_;
  hello.streams = session->link->streams_wanted();
  (void)session->link->post(
      std::make_shared<const Bytes>(encode_hello(MessageType::kHello, hello)));
}

std::optional<LinkSpeed> EndpointCore::link_speed(const std::optional<Address>& peer) const {
  const Lock lock(mutex_);
  if (peer) {
    const auto at = dialled_.find(to_string(*peer));
    return at == dialled_.end() ? std::nullopt : at->second->link->speed();
  }
  std::optional<LinkSpeed> slowest;
  for (const SessionPtr& session : accepted_) {
    const std::optional<LinkSpeed> speed = session->link->speed();
    if (speed && (!slowest || speed->bytes_per_second < slowest->bytes_per_second)) slowest = speed;
  }
  return slowest;
}

LinkCounts EndpointCore::links() const {
  const Lock lock(mutex_);
  LinkCounts counts;
  const auto count = [&](const SessionPtr& session) {
    if (session->state != Session::State::kReady) return;
    switch (session->link->path()) {
      case LinkPath::kTcp:
        ++counts.tcp;
        counts.tcp_streams += session->link->streams();
        break;
      case LinkPath::kSharedMemory: ++counts.shared_memory; break;
      case LinkPath::kUcx: ++counts.ucx; break;
    }
  };
  for (const auto& [name, session] : dialled_) count(session);
  for (const SessionPtr& session : accepted_) count(session);
  return counts;
}

// Messages.

void EndpointCore::on_message(const SessionPtr& session, ByteView bytes) {
  const Result<Message> message = parse_message(bytes);
  Lock lock(mutex_);
  if (stopped_ || session->state == Session::State::kGone) return;
  if (!message.ok()) return refuse(lock, session, message.status());
  session->last_heard = clock_;
  const MessageType type = message->header.type;
  if (type == MessageType::kError && message->header.transfer == TransferId{}) {
    on_link_error(lock, session, *message);
  } else if (session->state == Session::State::kGreeting || type == MessageType::kHello ||
             type == MessageType::kHelloAck || type == MessageType::kReject) {
    greet(lock, session, *message);
  } else {
    dispatch(lock, session, *message);
  }
}

// Messages of the handshake, and any that comes before its end.
void EndpointCore::greet(Lock& lock, const SessionPtr& session, const Message& message) {
  const bool greeting = session->state == Session::State::kGreeting;
  switch (message.header.type) {
    case MessageType::kHello:
      if (!session->is_connector()) return on_hello(lock, session, message);
      break;
    case MessageType::kHelloAck:
      if (session->is_connector() && !greeting) return;  // the answer to a repeated HELLO
      if (session->is_connector()) return on_hello_ack(lock, session, message);
      break;
    case MessageType::kReject:
      if (session->is_connector()) return on_link_error(lock, session, message);
      break;
    default: break;
  }
  refuse(lock, session,
         corrupt("an unexpected " + std::string(message_name(message.header.type)) + " from " +
                 session->link->peer() + (greeting ? " before the handshake" : "")));
}

void EndpointCore::on_hello(Lock& lock, const SessionPtr& session, const Message& message) {
  const Result<Hello> hello = decode_hello(message.body);
  if (!hello.ok()) return refuse(lock, session, hello.status().with_context("HELLO"));
  if (const auto why = mismatch(session, *hello)) {
    return refuse(lock, session, *why, encode_reject(*why));
  }
  session->state = Session::State::kReady;
  Hello answer = hello_;
  if (hello->streams > 1) {
    if (const auto key = session->link->stream_key()) {
      answer.streams = key->streams_max;
      answer.join.bytes = key->id;
    }
  }
  send(session, encode_hello(MessageType::kHelloAck, answer));
}

void EndpointCore::on_hello_ack(Lock& lock, const SessionPtr& session, const Message& message) {
  const Result<Hello> hello = decode_hello(message.body);
  if (!hello.ok()) return refuse(lock, session, hello.status().with_context("HELLO_ACK"));
  if (const auto why = mismatch(session, *hello)) return refuse(lock, session, *why);
  session->state = Session::State::kReady;
  if (hello->join != TransferId{}) {
    session->link->add_streams({hello->join.bytes, hello->streams});
  }
  link_ready(session);
}

void EndpointCore::on_link_error(Lock& lock, const SessionPtr& session, const Message& message) {
  Status reported;
  const Status status = decode_error(message.body, &reported);
  if (!status.ok()) return refuse(lock, session, status.with_context("ERROR"));
  end_session(lock, session, reported.with_context(session->link->peer() + " reports"));
}

std::optional<Status> EndpointCore::mismatch(const SessionPtr& session, const Hello& peer) const {
  if (peer.model == options_.model && peer.format == hello_.format &&
      peer.tables == options_.tables) {
    return std::nullopt;
  }
  return invalid_argument("two workers that do not fit: " + describe(hello_) + ", " +
                          describe(peer) + " (link to " + session->link->peer() + ")");
}

// The handshake of a link that this side opened is over: what waited for it starts.
void EndpointCore::link_ready(const SessionPtr& session) {
  for (const auto& [id, outgoing] : outgoing_) {
    if (outgoing->session == session && !outgoing->outcome) begin_sending(outgoing);
  }
  for (const auto& [id, incoming] : incoming_) {
    if (incoming->session != session || incoming->state != Incoming::State::kFetching) continue;
    incoming->last_heard = clock_;
    ask_again(incoming);
  }
}

void EndpointCore::dispatch(Lock& lock, const SessionPtr& session, const Message& message) {
  switch (message.header.type) {
    case MessageType::kBegin: return on_begin(lock, session, message);
    case MessageType::kSlab: return on_slab(lock, session, message);
    case MessageType::kEnd: return on_end(lock, session, message);
    case MessageType::kMissing: return on_missing(lock, session, message);
    case MessageType::kDone: return on_done(lock, session, message);
    case MessageType::kFetch: return on_fetch(session, message.header.transfer);
    case MessageType::kWait: return on_wait(session, message.header.transfer);
    case MessageType::kError: return on_transfer_error(lock, session, message);
    case MessageType::kRank:
    case MessageType::kJoin:
    case MessageType::kFence:
      return refuse(lock, session,
                    corrupt("a " + std::string(message_name(message.header.type)) +
                            " came, which belongs to no transfer"));
    case MessageType::kHello:
    case MessageType::kHelloAck:
    case MessageType::kReject: return;  // greet() has them
  }
}

// Endings.

void EndpointCore::refuse(Lock& lock, const SessionPtr& session, const Status& why) {
  refuse(lock, session, why, encode_error({}, why));
}

void EndpointCore::refuse(Lock& lock, const SessionPtr& session, const Status& why,
                          const Bytes& answer) {
  (void)session->link->post(std::make_shared<const Bytes>(answer));
  end_session(lock, session, why);
  report_refused(lock, session, why);
}

void EndpointCore::report_refused(Lock& lock, const SessionPtr& session, const Status& why) {
  if (!options_.on_refused || stopped_) return;
  call_out(lock, session.get(), [&] { options_.on_refused(session->link->peer(), why); });
}

void EndpointCore::on_closed(const SessionPtr& session, const Status& why) {
  Lock lock(mutex_);
  if (stopped_ || session->state == Session::State::kGone) return;
  // An orderly close is no less an end for what is under way.
  end_session(lock, session, why.code() == Code::kAborted ? unavailable(why.message()) : why);
  const bool foreign = why.code() == Code::kCorrupt || why.code() == Code::kUnsupported;
  if (foreign) report_refused(lock, session, why);
}

void EndpointCore::end_session(Lock& lock, const SessionPtr& session, const Status& why) {
  session->state = Session::State::kGone;
  session->link->close();
  session->backlog.clear();
  session->ready.clear();
  accepted_.erase(session);
  replaced_.erase(session);
  if (const auto at = dialled_.find(session->dialled());
      at != dialled_.end() && at->second == session) {
    dialled_.erase(at);
  }
  for (const auto& [id, outgoing] : outgoing_) {
    if (outgoing->session == session && !outgoing->outcome) end_outgoing(outgoing, why, false);
  }
  std::vector<IncomingPtr> failed;
  for (const auto& [id, incoming] : incoming_) {
    if (incoming->session == session) failed.push_back(incoming);
  }
  for (const IncomingPtr& incoming : failed) fail_incoming(lock, incoming, why, false);
}

// Posting.

void EndpointCore::send(const SessionPtr& session, Bytes message) {
  send(session, std::make_shared<const Bytes>(std::move(message)));
}

// A message without a frame: before all frames that wait. Too many of them: watch_session() ends
// the link.
void EndpointCore::send(const SessionPtr& session, std::shared_ptr<const Bytes> message) {
  if (session->state != Session::State::kReady) return;
  if (session->backlog.size() <= kBacklogMax) session->backlog.push_back(std::move(message));
  pump(session);
}

// Posts as much as the link takes, transfers in turn.
void EndpointCore::pump(const SessionPtr& session) {
  if (session->state != Session::State::kReady) return;
  // False when the link is full, or gone: then on_closed follows.
  const auto post = [&](const std::shared_ptr<const Bytes>& message) {
    const Status status = session->link->post(message);
    session->blocked = !status.ok();
    return status.ok();
  };
  while (!session->backlog.empty()) {
    if (!post(session->backlog.front())) return;
    session->backlog.pop_front();
  }
  while (!session->ready.empty()) {
    const OutgoingPtr outgoing = session->ready.front();
    const auto message = outgoing->next();
    if (message && !post(message)) return;
    session->ready.pop_front();
    if (message) outgoing->pop();
    outgoing->ready = outgoing->next() != nullptr;
    if (outgoing->ready) session->ready.push_back(outgoing);
  }
}

void EndpointCore::on_writable(const SessionPtr& session) {
  const Lock lock(mutex_);
  if (stopped_ || session->state == Session::State::kGone) return;
  // What was refused may be gone by now: then nothing is posted that would tell.
  session->blocked = false;
  session->last_heard = clock_;
  for (const auto& [id, outgoing] : outgoing_) {
    if (outgoing->session == session) outgoing->last_heard = clock_;
  }
  pump(session);
}

// Time.

void EndpointCore::schedule_tick() {
  network_.call_after(heartbeat() / 2, [weak = weak_from_this()] {
    if (const auto core = weak.lock()) core->tick();
  });
}

void EndpointCore::tick() {
  Lock lock(mutex_);
  if (stopped_) return;
  schedule_tick();
  const TimePoint network_now = network_.now();
  clock_ += std::min(network_now - last_tick_, ticks(heartbeat()));
  last_tick_ = network_now;
  const TimePoint now = clock_;
  for (const auto& [id, outgoing] : outgoing_) watch_outgoing(outgoing, now);
  // Copies: the rest may call the user, who may call us.
  std::vector<IncomingPtr> incoming;
  for (const auto& [id, transfer] : incoming_) {
    if (transfer->session) transfer->session->last_used = now;
    incoming.push_back(transfer);
  }
  std::vector<SessionPtr> sessions(accepted_.begin(), accepted_.end());
  for (const auto& [address, session] : dialled_) sessions.push_back(session);
  sessions.insert(sessions.end(), replaced_.begin(), replaced_.end());
  for (const IncomingPtr& transfer : incoming) {
    if (!stopped_) watch_incoming(lock, transfer, now);
  }
  for (const SessionPtr& session : sessions) {
    if (!stopped_) watch_session(lock, session, now);
  }
}

void EndpointCore::watch_session(Lock& lock, const SessionPtr& session, TimePoint now) {
  if (session->state == Session::State::kGone) return;
  const std::string& peer = session->link->peer();
  if (session->backlog.size() > kBacklogMax) {
    return end_session(lock, session, exhausted(peer + " does not read what it is sent"));
  }
  if (session->state == Session::State::kReady) {
    if (session->silent) {
      return end_session(lock, session, timed_out(peer + " does not answer any more"));
    }
    if (session->is_connector() && now - session->last_used > kIdleLinkLimit) {
      end_session(lock, session, aborted("an idle link"));
    }
    return;
  }
  if (now - session->opened > options_.idle_timeout) {
    const std::string limit = seconds_text(options_.idle_timeout);
    return end_session(lock, session, timed_out(peer + " did not greet within " + limit));
  }
  if (session->is_connector() && now - session->last_hello > heartbeat()) {
    session->last_hello = now;
    say_hello(session);
  }
}

// A transfer waited for its peer in vain. Where nothing else came either, the peer hangs or the
// link is cut in a place that the system does not know of: the next transfer must not begin on it.
void EndpointCore::note_silence(const SessionPtr& session, TimePoint now) const {
  if (!session || !session->is_connector()) return;  // the peer would begin it
  session->silent |= now - session->last_heard > options_.idle_timeout;
}

// Transfers of one link take turns: a turn of many on a slow link is longer than the idle limit.
Seconds EndpointCore::patience_with(const Session* link, TimePoint now) const {
  const bool others_move = link && now - link->last_moved <= options_.idle_timeout;
  return options_.idle_timeout * (others_move ? kIdleLimitsBehindOthers : 1);
}

void EndpointCore::watch_outgoing(const OutgoingPtr& outgoing, TimePoint now) {
  if (outgoing->outcome) return;
  const SessionPtr& session = outgoing->session;
  if (!session) {
    if (outgoing->finished() && now - outgoing->lease_start > options_.lease) {
      end_outgoing(outgoing,
                   timed_out("nobody fetched transfer " + to_string(outgoing->id) + " within " +
                             seconds_text(options_.lease)),
                   false);
    }
    return;
  }
  session->last_used = now;
  if (!outgoing->started()) return;  // the handshake has a limit of its own
  const Seconds patience = patience_with(session.get(), now);
  if (now - outgoing->last_heard > patience) {
    note_silence(session, now);
    return end_outgoing(outgoing,
                        timed_out("nothing from the receiver of transfer " +
                                  to_string(outgoing->id) + " for " + seconds_text(patience)),
                        true);
  }
  if (outgoing->held() && outgoing->finished() && now - outgoing->lease_start > options_.lease) {
    return end_outgoing(outgoing,
                        timed_out("the receiver of transfer " + to_string(outgoing->id) +
                                  " had no room within " + seconds_text(options_.lease)),
                        true);
  }
  // A receiver without room speaks only when it is spoken to.
  const bool silent = outgoing->held() || now - outgoing->last_heard > heartbeat();
  if (silent && now - outgoing->last_repeat > heartbeat() && !session->blocked &&
      !outgoing->next()) {
    outgoing->last_repeat = now;
    outgoing->repeat();
    enlist(outgoing);
  }
}

void EndpointCore::watch_incoming(Lock& lock, const IncomingPtr& incoming, TimePoint now) {
  const auto fail = [&](std::string sentence) {
    fail_incoming(lock, incoming, timed_out(std::move(sentence)), true);
  };
  const std::string name = "transfer " + to_string(incoming->id);
  switch (incoming->state) {
    case Incoming::State::kOver: return;
    case Incoming::State::kExpecting:
      if (now < incoming->deadline) return;
      return fail("nobody sent " + name + " within " + seconds_text(incoming->wait));
    case Incoming::State::kWaiting:
      if (now < incoming->deadline) break;
      return fail_incoming(
          lock, incoming,
          exhausted("there was no room for " + name + " within " + seconds_text(incoming->wait)),
          true);
    case Incoming::State::kFetching:
      if (incoming->session->state != Session::State::kReady) return;
      break;
    case Incoming::State::kRunning: break;
  }
  const Seconds patience = patience_with(incoming->session.get(), now);
  if (now - incoming->last_heard > patience) {
    note_silence(incoming->session, now);
    return fail("nothing from the sender of " + name + " for " + seconds_text(patience));
  }
  const bool waits = incoming->state == Incoming::State::kFetching || incoming->round() > 0;
  if (waits && now - std::max(incoming->last_told, incoming->last_slab) > heartbeat()) {
    ask_again(incoming);
  }
}

}  // namespace kvlane
