// The endpoint's public calls: starting, offering and asking for transfers, cancelling, stopping.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/endpoint.h"

#include <algorithm>
#include <utility>

#include "transfer/endpoint_core.h"
#include "transfer/slab_check.h"

namespace kvlane {
namespace {

// The user's handle of a transfer. The core may be gone before it.
class OutgoingHandle : public OutgoingTransfer {
 public:
  OutgoingHandle(std::weak_ptr<EndpointCore> core, std::shared_ptr<Outgoing> outgoing)
      : core_(std::move(core)), outgoing_(std::move(outgoing)) {}
  ~OutgoingHandle() override {
    if (const auto core = core_.lock()) core->abandon(outgoing_);
  }

  Status add_slab(FrameHeader header, const BodyWriter& body) override {
    const auto core = core_.lock();
    return core ? core->add_slab(outgoing_, std::move(header), body)
                : aborted("the endpoint is gone");
  }
  void finish(TransferEnd end) override {
    if (const auto core = core_.lock()) core->finish(outgoing_, std::move(end));
  }
  void fail(const Status& why) override {
    if (const auto core = core_.lock()) core->fail(outgoing_, why);
  }

 private:
  const std::weak_ptr<EndpointCore> core_;
  const std::shared_ptr<Outgoing> outgoing_;
};

class EndpointImpl : public Endpoint {
 public:
  explicit EndpointImpl(std::shared_ptr<EndpointCore> core) : core_(std::move(core)) {}
  ~EndpointImpl() override { core_->stop(); }

  Address address() const override { return core_->address(); }
  Result<std::shared_ptr<OutgoingTransfer>> push(const Address& peer, const TransferId& id,
                                                 const TransferBegin& begin, std::size_t bytes_max,
                                                 OnDelivered on_delivered) override {
    KVLANE_ASSIGN(auto outgoing, core_->push(peer, id, begin, bytes_max, std::move(on_delivered)));
    return handle(std::move(outgoing));
  }
  Result<std::shared_ptr<OutgoingTransfer>> park(const TransferId& id, const TransferBegin& begin,
                                                 std::size_t bytes_max,
                                                 OnDelivered on_delivered) override {
    KVLANE_ASSIGN(auto outgoing, core_->park(id, begin, bytes_max, std::move(on_delivered)));
    return handle(std::move(outgoing));
  }
  std::size_t outgoing_bytes_max() const override { return core_->outgoing_bytes_max(); }
  std::size_t outgoing_bytes_free() const override { return core_->outgoing_bytes_free(); }
  std::optional<LinkSpeed> link_speed(const std::optional<Address>& peer) const override {
    return core_->link_speed(peer);
  }
  LinkCounts links() const override { return core_->links(); }
  Status expect(const TransferId& id, Seconds wait, std::shared_ptr<TransferSink> sink) override {
    return core_->expect(id, wait, std::move(sink), /*room=*/true);
  }
  Status expect_waiting(const TransferId& id, Seconds wait,
                        std::shared_ptr<TransferSink> sink) override {
    return core_->expect(id, wait, std::move(sink), /*room=*/false);
  }
  Status grant(const TransferId& id, const TransferSink& sink) override {
    return core_->grant(id, sink);
  }
  Status fetch(const Address& peer, const TransferId& id,
               std::shared_ptr<TransferSink> sink) override {
    return core_->fetch(peer, id, std::move(sink));
  }
  void cancel(const TransferId& id, const TransferSink& sink) override { core_->cancel(id, sink); }

 private:
  std::shared_ptr<OutgoingTransfer> handle(std::shared_ptr<Outgoing> outgoing) {
    return std::make_shared<OutgoingHandle>(core_, std::move(outgoing));
  }

  const std::shared_ptr<EndpointCore> core_;
};

}  // namespace

std::size_t outgoing_bytes_needed(const TransferBegin& begin, std::size_t frame_bytes_max) {
  return slab_count(begin) * (kMessageHeaderBytes + frame_bytes_max);
}

Result<std::unique_ptr<Endpoint>> Endpoint::start(Network& network, EndpointOptions options) {
  auto core = std::make_shared<EndpointCore>(network, std::move(options));
  KVLANE_TRY(core->start());
  return std::unique_ptr<Endpoint>(std::make_unique<EndpointImpl>(std::move(core)));
}

EndpointCore::EndpointCore(Network& network, EndpointOptions options)
    : network_(network),
      options_(std::move(options)),
      codecs_(split_names(options_.codecs)),
      memory_(std::make_shared<MessageMemory>(options_.outgoing_bytes_max)) {
  const std::string& host = options_.advertised_host;
  hello_.engine = options_.engine.empty() ? to_string(random_transfer_id()) : options_.engine;
  hello_.address.host = host.empty() ? options_.bind.host : host;
  hello_.model = options_.model;
  hello_.format = options_.format + options_.mark;
  hello_.tables = options_.tables;
  hello_.codecs = codecs_;
}

Status EndpointCore::start() {
  if (options_.idle_timeout <= Seconds(0) || options_.lease <= Seconds(0)) {
    return invalid_argument("the idle time-out and the lease of an endpoint must be positive");
  }
  const std::string& host = hello_.address.host;
  if (host == "0.0.0.0" || host == "::" || host.empty()) {
    return invalid_argument(
        "peers cannot connect to \"" + host +
        "\": an endpoint that is bound to all addresses needs an advertised host");
  }
  // A greeting that peers would refuse is better refused here.
  const Bytes greeting = encode_hello(MessageType::kHello, hello_);
  const Result<Hello> read_back = decode_hello(ByteView(greeting).subspan(kMessageHeaderBytes));
  if (!read_back.ok()) {
    return invalid_argument("the options of the endpoint: " + read_back.status().message());
  }
  last_tick_ = clock_ = network_.now();
  KVLANE_ASSIGN(const Address bound,
                network_.listen(options_.bind, [weak = weak_from_this()](auto link) {
                  const auto core = weak.lock();
                  return core ? core->accept(std::move(link)) : nullptr;
                }));
  const Lock lock(mutex_);  // a peer may already be there
  hello_.address.port = bound.port;
  schedule_tick();
  return {};
}

void EndpointCore::stop() {
  const Status why = aborted("the endpoint of this worker was closed");
  std::vector<std::shared_ptr<TransferSink>> running;
  std::vector<std::shared_ptr<TransferSink>> over;
  std::vector<std::pair<OnDelivered, Result<Durations>>> undelivered;
  std::vector<SessionPtr> sessions;
  {
    Lock lock(mutex_);
    stopped_ = true;
    call_over_.wait(lock, [this] { return called_ == nullptr; });
    // From here on, nobody else calls a sink or a callback.
    for (const auto& [id, incoming] : incoming_) {
      (incoming->state == Incoming::State::kOver ? over : running)
          .push_back(std::move(incoming->sink));
      incoming->state = Incoming::State::kOver;
      incoming->session.reset();
    }
    for (const auto& [id, outgoing] : outgoing_) {
      if (!outgoing->outcome) outgoing->outcome = why;
      if (outgoing->on_delivered) {
        undelivered.emplace_back(std::move(outgoing->on_delivered), *outgoing->outcome);
      }
      outgoing->release();
      outgoing->session.reset();
    }
    for (const auto& [address, session] : dialled_) sessions.push_back(session);
    sessions.insert(sessions.end(), replaced_.begin(), replaced_.end());
    sessions.insert(sessions.end(), accepted_.begin(), accepted_.end());
    for (const SessionPtr& session : sessions) {
      session->state = Session::State::kGone;
      session->ready.clear();
      session->link->close();
    }
    incoming_.clear();
    outgoing_.clear();
    dialled_.clear();
    replaced_.clear();
    accepted_.clear();
  }
  for (const auto& sink : running) sink->on_failed(why);
  for (auto& [on_delivered, outcome] : undelivered) on_delivered(std::move(outcome));
}

// For a new transfer of that id. The last call about the one before may be why the id is used
// again, on another thread and before that call has returned: then it is free when the call has.
EndpointCore::Lock EndpointCore::lock_for_new(const TransferId& id) {
  Lock lock(mutex_);
  call_over_.wait(lock, [&] {
    if (called_ == nullptr || caller_ == std::this_thread::get_id()) return true;
    const auto outgoing = outgoing_.find(id);
    const auto incoming = incoming_.find(id);
    const bool last_of_outgoing = outgoing != outgoing_.end() && called_ == outgoing->second.get();
    const bool last_of_incoming = incoming != incoming_.end() &&
                                  called_ == incoming->second.get() &&
                                  incoming->second->state == Incoming::State::kOver;
    return !last_of_outgoing && !last_of_incoming;
  });
  return lock;
}

// Sending.

Status EndpointCore::check_new(const TransferId& id, const TransferBegin& begin,
                               std::size_t bytes_max) const {
  KVLANE_TRY(check_begin(begin));
  if (begin.format != options_.format) {
    return invalid_argument("a transfer in format " + begin.format + ", this worker holds " +
                            options_.format);
  }
  if (stopped_) return aborted("the endpoint of this worker was closed");
  if (id == TransferId{}) return invalid_argument("a transfer id of zeros names no transfer");
  if (outgoing_.contains(id)) return invalid_argument("transfer " + to_string(id) + " is in use");
  if (outgoing_.size() >= kTransfersMax) {
    return exhausted("this worker already sends " + std::to_string(kTransfersMax) + " transfers");
  }
  const std::size_t arena = options_.outgoing_bytes_max;
  if (bytes_max > arena) {
    return invalid_argument("frames of this transfer may take " + std::to_string(bytes_max) +
                            " bytes, this worker has " + std::to_string(arena) +
                            " for all that it sends");
  }
  if (bytes_max > arena - outgoing_bytes_) {
    return exhausted("frames of this transfer may take " + std::to_string(bytes_max) + " bytes, " +
                     std::to_string(arena - outgoing_bytes_) + " of " + std::to_string(arena) +
                     " are free");
  }
  return {};
}

EndpointCore::OutgoingPtr EndpointCore::keep_outgoing(const TransferId& id,
                                                      const TransferBegin& begin,
                                                      std::size_t bytes_max,
                                                      OnDelivered on_delivered) {
  auto outgoing = std::make_shared<Outgoing>(id, begin, bytes_max);
  outgoing_bytes_ += bytes_max;
  outgoing->on_delivered = std::move(on_delivered);
  outgoing->last_heard = clock_;
  outgoing_outcomes_.forget(id);
  outgoing_.emplace(id, outgoing);
  return outgoing;
}

Result<EndpointCore::OutgoingPtr> EndpointCore::push(const Address& peer, const TransferId& id,
                                                     const TransferBegin& begin,
                                                     std::size_t bytes_max,
                                                     OnDelivered on_delivered) {
  const Lock lock = lock_for_new(id);
  KVLANE_TRY(check_new(id, begin, bytes_max));
  KVLANE_ASSIGN(SessionPtr session, dial(peer));
  OutgoingPtr outgoing = keep_outgoing(id, begin, bytes_max, std::move(on_delivered));
  outgoing->session = std::move(session);
  if (outgoing->session->state == Session::State::kReady) begin_sending(outgoing);
  return outgoing;
}

Result<EndpointCore::OutgoingPtr> EndpointCore::park(const TransferId& id,
                                                     const TransferBegin& begin,
                                                     std::size_t bytes_max,
                                                     OnDelivered on_delivered) {
  const Lock lock = lock_for_new(id);
  KVLANE_TRY(check_new(id, begin, bytes_max));
  OutgoingPtr outgoing = keep_outgoing(id, begin, bytes_max, std::move(on_delivered));
  outgoing->parked = true;
  return outgoing;
}

Status EndpointCore::add_slab(const OutgoingPtr& outgoing, FrameHeader header,
                              const BodyWriter& body) {
  const std::size_t frame_bytes = kFrameHeaderBytes + header.body_bytes();
  if (frame_bytes > kSlabBodyBytesMax) {
    return invalid_argument("a frame of " + std::to_string(frame_bytes) + " bytes, at most " +
                            std::to_string(kSlabBodyBytesMax) + " can be sent");
  }
  const Result<SlabName> slab = check_slab(header, options_.model, outgoing->begin);
  if (!slab.ok()) return invalid_argument(slab.status().message());
  const auto message = memory_->take(kMessageHeaderBytes + frame_bytes);
  const std::span<std::byte> bytes = *message;
  begin_slab(outgoing->id, frame_bytes, bytes.first<kMessageHeaderBytes>());
  KVLANE_TRY(write_frame(std::move(header), body, bytes.subspan(kMessageHeaderBytes)));
  return keep_slab(outgoing, *slab, message);
}

Status EndpointCore::keep_slab(const OutgoingPtr& outgoing, const SlabName& slab,
                               std::shared_ptr<const Bytes> message) {
  const Lock lock(mutex_);
  if (outgoing->outcome) {
    return outgoing->outcome->ok() ? invalid_argument("the transfer was already delivered")
                                   : outgoing->outcome->status();
  }
  if (stopped_) return aborted("the endpoint of this worker was closed");
  KVLANE_TRY(outgoing->add(slab, std::move(message)));
  enlist(outgoing);
  return {};
}

void EndpointCore::finish(const OutgoingPtr& outgoing, TransferEnd end) {
  const Lock lock(mutex_);
  if (outgoing->outcome || stopped_) return;
  const std::size_t set_aside = outgoing->set_aside();
  if (Status status = outgoing->finish(std::move(end), network_.now()); !status.ok()) {
    return end_outgoing(outgoing, std::move(status), true);
  }
  outgoing_bytes_ -= set_aside - outgoing->set_aside();
  outgoing->lease_start = clock_;
  enlist(outgoing);
}

void EndpointCore::fail(const OutgoingPtr& outgoing, const Status& why) {
  const Lock lock(mutex_);
  if (outgoing->outcome || stopped_) return;
  end_outgoing(outgoing, why.ok() ? internal_error("a transfer failed without an error") : why,
               true);
}

void EndpointCore::abandon(const OutgoingPtr& outgoing) {
  const Lock lock(mutex_);
  if (outgoing->outcome || stopped_ || outgoing->finished()) return;
  end_outgoing(outgoing, aborted("the sender dropped the transfer before its end"), true);
}

std::size_t EndpointCore::outgoing_bytes_free() const {
  const Lock lock(mutex_);
  return options_.outgoing_bytes_max - outgoing_bytes_;
}

// Receiving.

Status EndpointCore::check_new_incoming(const TransferId& id, const TransferSink* sink) const {
  if (stopped_) return aborted("the endpoint of this worker was closed");
  if (sink == nullptr) return invalid_argument("a transfer needs a sink");
  if (id == TransferId{}) return invalid_argument("a transfer id of zeros names no transfer");
  if (incoming_.contains(id)) return invalid_argument("transfer " + to_string(id) + " is in use");
  if (incoming_.size() >= kTransfersMax) {
    return exhausted("this worker already receives " + std::to_string(kTransfersMax) +
                     " transfers");
  }
  return {};
}

Status EndpointCore::expect(const TransferId& id, Seconds wait, std::shared_ptr<TransferSink> sink,
                            bool room) {
  const Lock lock = lock_for_new(id);
  KVLANE_TRY(check_new_incoming(id, sink.get()));
  auto incoming = std::make_shared<Incoming>(id, Incoming::State::kExpecting, std::move(sink));
  incoming->wait = wait;
  incoming->room = room;
  incoming->deadline = clock_ + std::chrono::duration_cast<SteadyClock::duration>(wait);
  incoming_outcomes_.forget(id);
  incoming_.emplace(id, std::move(incoming));
  return {};
}

Status EndpointCore::grant(const TransferId& id, const TransferSink& sink) {
  const Lock lock(mutex_);
  const auto at = incoming_.find(id);
  if (at == incoming_.end() || at->second->whose != &sink ||
      at->second->state == Incoming::State::kOver) {
    return not_found("transfer " + to_string(id) + " is not expected any more");
  }
  if (at->second->grant()) tell_here(at->second);
  return {};
}

Status EndpointCore::fetch(const Address& peer, const TransferId& id,
                           std::shared_ptr<TransferSink> sink) {
  const Lock lock = lock_for_new(id);
  KVLANE_TRY(check_new_incoming(id, sink.get()));
  KVLANE_ASSIGN(SessionPtr session, dial(peer));
  auto incoming = std::make_shared<Incoming>(id, Incoming::State::kFetching, std::move(sink));
  incoming->session = std::move(session);
  incoming->last_heard = clock_;
  incoming_outcomes_.forget(id);
  incoming_.emplace(id, incoming);
  if (incoming->session->state == Session::State::kReady) ask_again(incoming);
  return {};
}

void EndpointCore::cancel(const TransferId& id, const TransferSink& sink) {
  const Status why = aborted("the transfer was cancelled");
  IncomingPtr incoming;
  std::shared_ptr<TransferSink> last;  // destroyed after the lock is released
  Lock lock(mutex_);
  const auto at = incoming_.find(id);
  if (at == incoming_.end() || at->second->whose != &sink) return;
  incoming = at->second;
  if (incoming->state != Incoming::State::kOver) {
    incoming->state = Incoming::State::kOver;
    const auto error = std::make_shared<const Bytes>(encode_error(id, why));
    incoming_outcomes_.remember(id, error);
    if (incoming->session) send(incoming->session, error);
  }
  // Within a call of the sink, the caller lets go of it afterwards.
  if (called_ == incoming.get() && caller_ == std::this_thread::get_id()) return;
  call_over_.wait(lock, [&] { return called_ != incoming.get(); });
  last = std::move(incoming->sink);
  forget(incoming);
}

void EndpointCore::forget(const IncomingPtr& incoming) {
  const auto at = incoming_.find(incoming->id);
  if (at != incoming_.end() && at->second == incoming) incoming_.erase(at);
  incoming->session.reset();
}

}  // namespace kvlane
