// The endpoint as receiver: spec/transfer.md section 7.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "transfer/endpoint_core.h"
#include "transfer/slab_check.h"

namespace kvlane {

// What the receiver needs next, once more: the parked frames, or the slabs that lack.
void EndpointCore::ask_again(const IncomingPtr& incoming) {
  if (incoming->state == Incoming::State::kRunning) {
    return tell_missing(incoming, incoming->missing());
  }
  incoming->last_told = clock_;
  send(incoming->session, encode_fetch(incoming->id));
}

void EndpointCore::tell_missing(const IncomingPtr& incoming, const Missing& missing) {
  incoming->last_told = clock_;
  send(incoming->session, encode_missing(incoming->id, missing));
}

// "I am here", with room for slabs or without.
void EndpointCore::tell_here(const IncomingPtr& incoming) {
  if (incoming->state == Incoming::State::kRunning) {
    return tell_missing(incoming, {incoming->round(), {}});
  }
  incoming->last_told = clock_;
  send(incoming->session, encode_wait(incoming->id));
}

// BEGIN or END of a transfer that does not run here: as it ended, or that it is not known.
void EndpointCore::answer_unknown(const SessionPtr& session, const TransferId& id) {
  const auto answer = incoming_outcomes_.find(id);
  answer ? send(session, answer)
         : send(session,
                encode_error(id, not_found("transfer " + to_string(id) + " is not expected here")));
}

EndpointCore::IncomingPtr EndpointCore::find_begun(const SessionPtr& session,
                                                   const TransferId& id) const {
  const auto at = incoming_.find(id);
  if (at == incoming_.end() || at->second->session != session) return nullptr;
  return at->second->begun() ? at->second : nullptr;
}

// After the sink's last call. That it is destroyed counts as a call: cancel() and stop() wait for
// it.
void EndpointCore::let_go(Lock& lock, const IncomingPtr& incoming) {
  if (stopped_) return;  // stop() has it
  std::shared_ptr<TransferSink> sink = std::move(incoming->sink);
  call_out(lock, incoming.get(), [&] { sink.reset(); });
  forget(incoming);
}

bool EndpointCore::still_running(Lock& lock, const IncomingPtr& incoming) {
  if (stopped_) return false;
  if (incoming->begun()) return true;
  let_go(lock, incoming);  // cancelled from within the call
  return false;
}

Status EndpointCore::check_acceptable(const TransferBegin& begin) const {
  if (begin.format != options_.format) {
    return unsupported("a transfer in format " + begin.format + ", the receiver holds " +
                       options_.format);
  }
  if (std::ranges::find(codecs_, begin.codec) == codecs_.end()) {
    return unsupported("a transfer in codec " + begin.codec + ", the receiver knows " +
                       options_.codecs);
  }
  return {};
}

void EndpointCore::on_begin(Lock& lock, const SessionPtr& session, const Message& message) {
  const TransferId& id = message.header.transfer;
  const Result<TransferBegin> begin = decode_begin(message.body);
  if (!begin.ok()) return refuse(lock, session, begin.status().with_context("BEGIN"));
  const auto at = incoming_.find(id);
  if (at == incoming_.end()) return answer_unknown(session, id);
  const IncomingPtr incoming = at->second;
  const bool elsewhere = incoming->session && incoming->session != session;
  if (elsewhere) return answer_unknown(session, id);
  if (incoming->state == Incoming::State::kOver) return;  // its last call is under way
  incoming->last_heard = session->last_moved = clock_;
  if (incoming->begun()) {
    if (*begin == incoming->begin()) return tell_here(incoming);
    return fail_incoming(lock, incoming, corrupt("the sender announced the transfer anew"), true);
  }
  incoming->session = session;
  if (const Status status = check_acceptable(*begin); !status.ok()) {
    return fail_incoming(lock, incoming, status, true);
  }
  incoming->last_told = incoming->last_heard;
  incoming->run(*begin);
  Status status;
  call_out(lock, incoming.get(), [&] { status = incoming->sink->on_begin(*begin); });
  if (!still_running(lock, incoming)) return;
  if (!status.ok()) return fail_incoming(lock, incoming, status, true);
  if (incoming->state == Incoming::State::kWaiting) tell_here(incoming);
}

void EndpointCore::on_slab(Lock& lock, const SessionPtr& session, const Message& message) {
  const TransferId& id = message.header.transfer;
  const IncomingPtr incoming = find_begun(session, id);
  if (!incoming) {
    // Of one that was given up: what its sender had posted stands before others.
    if (incoming_outcomes_.find(id)) session->last_moved = clock_;
    return;
  }
  incoming->last_heard = session->last_moved = clock_;
  if (incoming->state == Incoming::State::kWaiting) {
    if (clock_ - incoming->last_told > heartbeat()) tell_here(incoming);
    return;
  }
  lock.unlock();  // a checksum over some MiB
  const Result<Frame> frame = parse_frame(message.body);
  lock.lock();
  if (stopped_ || incoming->state != Incoming::State::kRunning) return;
  if (!frame.ok()) {
    if (frame.status().code() == Code::kCorrupt) return;  // will be asked for again
    return fail_incoming(lock, incoming, frame.status(), true);
  }
  const Result<SlabName> slab = check_slab(frame->header, options_.model, incoming->begin());
  if (!slab.ok()) return fail_incoming(lock, incoming, slab.status(), true);
  if (!incoming->take(*slab)) return;
  incoming->last_slab = incoming->last_heard;
  Status status;
  call_out(lock, incoming.get(), [&] { status = incoming->sink->on_slab(*frame); });
  if (!still_running(lock, incoming)) return;
  if (!status.ok()) return fail_incoming(lock, incoming, status, true);
  if (incoming->complete()) return complete(lock, incoming);
  if (clock_ - incoming->last_told > heartbeat()) tell_here(incoming);
}

void EndpointCore::on_end(Lock& lock, const SessionPtr& session, const Message& message) {
  const TransferId& id = message.header.transfer;
  Result<NumberedEnd> end = decode_end(message.body);
  if (!end.ok()) return refuse(lock, session, end.status().with_context("END"));
  const IncomingPtr incoming = find_begun(session, id);
  if (!incoming) {
    const auto at = incoming_.find(id);
    const bool waits =
        at != incoming_.end() && (at->second->session == nullptr || at->second->session == session);
    return waits ? void() : answer_unknown(session, id);
  }
  incoming->last_heard = session->last_moved = clock_;
  if (incoming->state == Incoming::State::kWaiting) return;  // it will be told again
  const Result<bool> new_round = incoming->on_end(std::move(*end));
  if (!new_round.ok()) return fail_incoming(lock, incoming, new_round.status(), true);
  if (incoming->complete()) return complete(lock, incoming);
  if (*new_round) ask_again(incoming);
}

// ERROR of one transfer, in either role.
void EndpointCore::on_transfer_error(Lock& lock, const SessionPtr& session,
                                     const Message& message) {
  const TransferId& id = message.header.transfer;
  Status reported;
  const Status status = decode_error(message.body, &reported);
  if (!status.ok()) return refuse(lock, session, status.with_context("ERROR"));
  if (const OutgoingPtr outgoing = find_outgoing(session, id)) {
    return end_outgoing(outgoing, reported.with_context("the receiver reports"), false);
  }
  const auto at = incoming_.find(id);
  if (at == incoming_.end()) return;
  const IncomingPtr incoming = at->second;
  // A push may fail before its BEGIN has come; knowing the id is proof enough.
  if (incoming->session && incoming->session != session) return;
  fail_incoming(lock, incoming, reported.with_context("the sender reports"), false);
}

void EndpointCore::complete(Lock& lock, const IncomingPtr& incoming) {
  incoming->state = Incoming::State::kOver;
  Durations durations;
  call_out(lock, incoming.get(), [&] { durations = incoming->sink->on_end(incoming->end()); });
  const auto done = std::make_shared<const Bytes>(encode_done(incoming->id, durations));
  incoming_outcomes_.remember(incoming->id, done);
  if (incoming->session) send(incoming->session, done);
  let_go(lock, incoming);
}

void EndpointCore::fail_incoming(Lock& lock, const IncomingPtr& incoming, const Status& why,
                                 bool tell) {
  if (incoming->state == Incoming::State::kOver || stopped_) return;
  incoming->state = Incoming::State::kOver;
  const auto error = std::make_shared<const Bytes>(encode_error(incoming->id, why));
  incoming_outcomes_.remember(incoming->id, error);
  if (tell && incoming->session) send(incoming->session, error);
  call_out(lock, incoming.get(), [&] { incoming->sink->on_failed(why); });
  let_go(lock, incoming);
}

}  // namespace kvlane
