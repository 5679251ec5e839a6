// The endpoint as sender: spec/transfer.md section 6.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "transfer/endpoint_core.h"

namespace kvlane {

// The transfer has a ready link: everything that is there goes out.
void EndpointCore::begin_sending(const OutgoingPtr& outgoing) {
  outgoing->last_heard = outgoing->last_repeat = clock_;
  outgoing->start(network_.now());
  enlist(outgoing);
}

// There may be something to post.
void EndpointCore::enlist(const OutgoingPtr& outgoing) {
  const SessionPtr session = outgoing->session;
  if (!session || !outgoing->next()) return;
  if (!std::exchange(outgoing->ready, true)) session->ready.push_back(outgoing);
  if (!session->blocked) pump(session);
}

// The running transfer that this link carries; null when there is none.
EndpointCore::OutgoingPtr EndpointCore::find_outgoing(const SessionPtr& session,
                                                      const TransferId& id) const {
  const auto at = outgoing_.find(id);
  if (at == outgoing_.end() || at->second->session != session || at->second->outcome)
    return nullptr;
  return at->second;
}

void EndpointCore::on_fetch(const SessionPtr& session, const TransferId& id) {
  if (const OutgoingPtr outgoing = find_outgoing(session, id)) {
    outgoing->last_heard = session->last_moved = clock_;
    if (!outgoing->next()) outgoing->repeat();
    return enlist(outgoing);
  }
  const auto at = outgoing_.find(id);
  if (at == outgoing_.end() || at->second->outcome) {
    const auto answer = outgoing_outcomes_.find(id);
    return answer ? send(session, answer)
                  : send(session, encode_error(id, not_found("transfer " + to_string(id) +
                                                             " is not parked here")));
  }
  const OutgoingPtr outgoing = at->second;
  if (outgoing->session) {
    return send(session, encode_error(id, unavailable("transfer " + to_string(id) +
                                                      " goes to another worker")));
  }
  outgoing->session = session;
  session->last_moved = clock_;
  begin_sending(outgoing);
}

void EndpointCore::on_missing(Lock& lock, const SessionPtr& session, const Message& message) {
  const TransferId& id = message.header.transfer;
  const Result<Missing> missing = decode_missing(message.body);
  if (!missing.ok()) return refuse(lock, session, missing.status().with_context("MISSING"));
  const OutgoingPtr outgoing = find_outgoing(session, id);
  if (!outgoing) return answer_not_sent(session, id);
  outgoing->last_heard = session->last_moved = clock_;
  if (Status status = outgoing->answer(*missing, network_.now()); !status.ok()) {
    return end_outgoing(outgoing, std::move(status), true);
  }
  enlist(outgoing);
}

// The receiver has no room yet.
void EndpointCore::on_wait(const SessionPtr& session, const TransferId& id) {
  const OutgoingPtr outgoing = find_outgoing(session, id);
  if (!outgoing) return answer_not_sent(session, id);
  outgoing->last_heard = session->last_moved = clock_;
  if (outgoing->hold()) outgoing->lease_start = clock_;
}

// MISSING or WAIT of a transfer that does not run here: how it ended, or that it is not known.
void EndpointCore::answer_not_sent(const SessionPtr& session, const TransferId& id) {
  const auto answer = outgoing_outcomes_.find(id);
  answer
      ? send(session, answer)
      : send(session,
             encode_error(id, not_found("transfer " + to_string(id) + " is not sent from here")));
}

void EndpointCore::on_done(Lock& lock, const SessionPtr& session, const Message& message) {
  Result<Durations> durations = decode_done(message.body);
  if (!durations.ok()) return refuse(lock, session, durations.status().with_context("DONE"));
  const OutgoingPtr outgoing = find_outgoing(session, message.header.transfer);
  if (!outgoing) return;
  session->last_moved = clock_;
  if (!outgoing->finished()) {
    return end_outgoing(outgoing, corrupt("the receiver acknowledged a transfer before its end"),
                        true);
  }
  end_outgoing(outgoing, std::move(durations), false);
}

void EndpointCore::end_outgoing(const OutgoingPtr& outgoing, Result<Durations> outcome, bool tell) {
  const Status why =
      outcome.ok() ? not_found("transfer " + to_string(outgoing->id) + " was already delivered")
                   : outcome.status();
  const auto error = std::make_shared<const Bytes>(encode_error(outgoing->id, why));
  outgoing_outcomes_.remember(outgoing->id, error);
  outgoing_bytes_ -= outgoing->set_aside();
  outgoing->release();
  outgoing->outcome = std::move(outcome);
  const SessionPtr session = std::move(outgoing->session);
  if (tell && session && outgoing->started()) send(session, error);
  network_.call_after(Seconds(0), [weak = weak_from_this(), outgoing] {
    if (const auto core = weak.lock()) core->deliver(outgoing);
  });
}

void EndpointCore::deliver(const OutgoingPtr& outgoing) {
  Lock lock(mutex_);
  if (stopped_) return;
  OnDelivered on_delivered = std::exchange(outgoing->on_delivered, nullptr);
  call_out(lock, outgoing.get(), [&] {
    if (on_delivered) on_delivered(*outgoing->outcome);
    on_delivered = nullptr;
  });
  if (const auto at = outgoing_.find(outgoing->id);
      at != outgoing_.end() && at->second == outgoing) {
    outgoing_.erase(at);
  }
}

}  // namespace kvlane
