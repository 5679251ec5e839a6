// Messages are dealt whole, to the connection that has least queued. What is no SLAB goes over the
// first one, and fences keep its place among SLABs: a BEGIN comes before them, an END behind.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp_streams.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvlane {
namespace {

namespace asio = boost::asio;
using Lock = std::lock_guard<std::mutex>;

constexpr std::size_t kTypeOffset = 6;  // in the header of a message
// In which time nothing may come while a connection waits, in equal parts: a thread that was busy
// for the whole of it has read in between.
constexpr int kFenceChecks = 2;

bool is_of_type(ByteView message, MessageType type) {
  return message.size() > kTypeOffset && MessageType{std::uint8_t(message[kTypeOffset])} == type;
}

}  // namespace

// What one connection tells its link.
class TcpStreams::Ear : public ConnectionEvents {
 public:
  Ear(std::shared_ptr<TcpStreams> link, std::size_t number)
      : link_(std::move(link)), number_(number) {}
  void on_message(ByteView message) override { link_->on_message(number_, message); }
  void on_written() override { link_->on_written(); }
  void on_closed(Status why) override { link_->on_closed(number_, std::move(why)); }

 private:
  const std::shared_ptr<TcpStreams> link_;
  const std::size_t number_;
};

TcpStreams::TcpStreams(std::shared_ptr<TcpLoop> loop, std::shared_ptr<TcpConnection> first,
                       Origin origin)
    : loop_(std::move(loop)),
      origin_(origin),
      peer_(first->peer()),
      joining_until_(loop_->io),
      fence_watch_(loop_->io),
      ending_until_(loop_->io) {
  streams_[0].connection = std::move(first);
  streams_[0].joined = true;
}

void TcpStreams::start(std::shared_ptr<LinkEvents> events) {
  events_ = std::move(events);
  streams_[0].connection->start(std::make_shared<Ear>(shared_from_this(), 0));
  forget_user_if_closed();
}

void TcpStreams::connect(const Address& address, std::shared_ptr<LinkEvents> events) {
  events_ = std::move(events);
  streams_[0].connection->connect(address, std::make_shared<Ear>(shared_from_this(), 0));
  forget_user_if_closed();
}

// What close() posted may have come before the user was known.
void TcpStreams::forget_user_if_closed() {
  {
    const Lock lock(mutex_);
    if (!closed_) return;
  }
  forget_user();
}

SharedListener::Match TcpStreams::take(const SharedOffer& offer,
                                       std::shared_ptr<SharedAgreement> agreement) {
  if (!streams_[0].connection) return SharedListener::Match::kUnknown;
  return streams_[0].connection->take(offer, std::move(agreement));
}

// What it tells.

LinkPath TcpStreams::path() const {
  const Lock lock(mutex_);
  return streams_[0].connection ? streams_[0].connection->path() : LinkPath::kTcp;
}

// All connections together. Messages are dealt so that they wait on all of them or on none.
std::optional<LinkSpeed> TcpStreams::speed() const {
  const Lock lock(mutex_);
  std::optional<LinkSpeed> sum;
  double receiver_bound = 0;
  for (const Stream& stream : streams_) {
    const auto speed = stream.joined ? stream.connection->speed() : std::nullopt;
    if (!speed) continue;
    if (!sum) sum = LinkSpeed();
    sum->bytes_per_second += speed->bytes_per_second;
    if (speed->receiver_bound) receiver_bound += speed->bytes_per_second;
  }
  if (sum) sum->receiver_bound = receiver_bound > sum->bytes_per_second / 2;
  return sum;
}

int TcpStreams::streams() const {
  const Lock lock(mutex_);
  return static_cast<int>(std::ranges::count_if(streams_, &Stream::joined));
}

std::uint32_t TcpStreams::streams_wanted() const {
  return std::clamp<std::uint32_t>(loop_->options.streams, 1, kLinkStreamsMax);
}

bool TcpStreams::is_over() const {
  const Lock lock(mutex_);
  return over_;
}

// Sending.

Status TcpStreams::post(std::shared_ptr<const Bytes> message) {
  const Lock lock(mutex_);
  if (over_) return unavailable("the link to " + peer_ + " is closed");
  std::size_t queued = 0;
  std::size_t least = SIZE_MAX;
  std::size_t target = 0;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].joined) continue;
    const std::size_t bytes = streams_[i].connection->queued_bytes();
    queued += bytes;
    if (bytes < least) {
      least = bytes;
      target = i;
    }
  }
  if (queued >= loop_->options.queue_bytes_max) {
    refused_ = true;
    return exhausted("the link to " + peer_ + " has " + std::to_string(queued) + " bytes queued");
  }
  const bool is_slab = is_of_type(*message, MessageType::kSlab);
  if (!is_slab) target = 0;
  Stream& stream = streams_[target];
  if (const std::optional<Fence> fence = fence_before(target, is_slab)) {
    KVLANE_TRY(stream.connection->post(share(encode_fence(key_, *fence))));
  }
  KVLANE_TRY(stream.connection->post(std::move(message)));
  ++stream.posted;
  if (!is_slab) control_ = stream.posted;
  return {};
}

// What has to be delivered on other connections before the next message of that one: all SLABs
// before what is none, and what is none before all SLABs. Empty when the peer knows it already.
std::optional<Fence> TcpStreams::fence_before(std::size_t target, bool is_slab) {
  if (target > 0) {
    if (std::exchange(streams_[target].control_told, control_) == control_) return std::nullopt;
    return Fence{control_};
  }
  Fence fence;
  for (std::size_t i = 1; i < streams_.size() && !is_slab; ++i) {
    Stream& other = streams_[i];
    if (std::exchange(other.posted_told, other.posted) == other.posted) continue;
    fence.resize(i + 1);
    fence[i] = other.posted;
  }
  if (fence.empty()) return std::nullopt;
  return fence;
}

void TcpStreams::on_written() {
  {
    const Lock lock(mutex_);
    if (!refused_) return;
    std::size_t queued = 0;
    for (const Stream& stream : streams_) {
      if (stream.joined) queued += stream.connection->queued_bytes();
    }
    if (queued > loop_->options.queue_bytes_max / 2) return;
    refused_ = false;
  }
  // A copy: the call may close the link.
  const std::shared_ptr<LinkEvents> events = events_;
  if (events) events->on_writable();
}

// Receiving.

TransferId TcpStreams::key() const {
  const Lock lock(mutex_);
  return key_;
}

void TcpStreams::on_message(std::size_t from, ByteView bytes) {
  if (is_of_type(bytes, MessageType::kJoin)) return on_join(from, bytes);
  if (is_of_type(bytes, MessageType::kFence)) return on_fence(from, bytes);
  if (!streams_[from].joined) {  // the peer does not take it in, and says why
    return refuse(from, corrupt(peer_ + " did not answer a JOIN"));
  }
  ++streams_[from].delivered;
  ++delivered_;
  const std::shared_ptr<LinkEvents> events = events_;
  if (events) events->on_message(bytes);
  release();
}

void TcpStreams::on_fence(std::size_t from, ByteView bytes) {
  const Result<Message> message = parse_message(bytes);
  if (!message.ok()) return refuse(from, message.status());
  Result<Fence> fence = decode_fence(message->body);
  if (!fence.ok()) return refuse(from, fence.status());
  bool belongs = streams_[from].joined && message->header.transfer == key();
  for (std::size_t i = 0; i < fence->size(); ++i) {
    belongs &= (*fence)[i] == 0 || (i != from && streams_[i].connection);
  }
  if (!belongs) return refuse(from, corrupt("a FENCE that belongs to no connection of its link"));
  if (is_met(*fence)) return;
  streams_[from].fence = std::move(*fence);
  streams_[from].connection->pause();
  if (!std::exchange(watching_, true)) watch_fences(delivered_, 0);
}

bool TcpStreams::is_met(const Fence& fence) const {
  for (std::size_t i = 0; i < fence.size(); ++i) {
    if (streams_[i].delivered < fence[i]) return false;
  }
  return true;
}

// Connections whose fence is met go on.
void TcpStreams::release() {
  for (Stream& stream : streams_) {
    if (stream.fence.empty() || !is_met(stream.fence)) continue;
    stream.fence.clear();
    if (stream.connection) stream.connection->resume();
  }
}

// While a connection waits, it is not read, and its end is not seen. So somebody has to see that
// nothing comes on the others either. `delivered` had come `checks` checks ago.
void TcpStreams::watch_fences(std::uint64_t delivered, int checks) {
  fence_watch_.expires_after(ticks(loop_->options.user_timeout / kFenceChecks));
  fence_watch_.async_wait([self = shared_from_this(), delivered, checks](const Error& error) {
    if (error) return;
    const bool waits =
        std::ranges::any_of(self->streams_, [](const Stream& s) { return !s.fence.empty(); });
    if (!waits) {
      self->watching_ = false;
    } else if (self->delivered_ != delivered) {
      self->watch_fences(self->delivered_, 0);
    } else if (checks + 1 < kFenceChecks) {
      self->watch_fences(delivered, checks + 1);
    } else {
      self->finish(unavailable("the link to " + self->peer_ + " broke: a part of it waits for " +
                               "messages on another that do not come"),
                   false);
    }
  });
}

// Joining.

std::optional<StreamKey> TcpStreams::stream_key() {
  const Lock lock(mutex_);
  if (over_ || origin_ != Origin::kAccepted || !streams_[0].connection ||
      streams_[0].connection->path() != LinkPath::kTcp) {
    return std::nullopt;
  }
  if (key_ == TransferId{}) key_ = random_transfer_id();
  return StreamKey{key_.bytes, kLinkStreamsMax};
}

void TcpStreams::add_streams(const StreamKey& key) {
  asio::post(loop_->io, [self = shared_from_this(), key] { self->open_more(key); });
}

void TcpStreams::open_more(const StreamKey& key) {
  if (origin_ != Origin::kOpened) return;
  const Address address = streams_[0].connection->remote();
  const std::size_t wanted = std::min(streams_wanted(), key.streams_max);
  std::vector<std::shared_ptr<TcpConnection>> opened;
  {
    const Lock lock(mutex_);
    if (over_ || loop_->stopping || key_ != TransferId{} ||
        streams_[0].connection->path() != LinkPath::kTcp) {
      return;
    }
    key_.bytes = key.id;
    for (std::size_t i = 1; i < wanted; ++i) {
      auto connection = std::make_shared<TcpConnection>(loop_, TcpConnection::Socket(loop_->io),
                                                        peer_, Origin::kJoining);
      (void)connection->post(share(encode_stream_join({key_, static_cast<std::uint32_t>(i)})));
      streams_[i].connection = connection;
      opened.push_back(std::move(connection));
    }
  }
  for (std::size_t i = 0; i < opened.size(); ++i) {
    opened[i]->connect(address, std::make_shared<Ear>(shared_from_this(), i + 1));
  }
  joining_until_.expires_after(ticks(loop_->options.connect_timeout));
  joining_until_.async_wait([self = shared_from_this()](const Error& error) {
    if (!error) self->forget_unjoined();
  });
}

// The link goes on without them.
void TcpStreams::forget_unjoined() {
  for (Stream& stream : streams_) {
    if (!stream.connection || stream.joined) continue;
    const Lock lock(mutex_);
    std::exchange(stream.connection, nullptr)->drop();
  }
}

std::shared_ptr<TcpStreams> TcpStreams::find(const TransferId& id) const {
  for (const auto& weak : loop_->links) {
    const auto link = weak.lock();
    if (!link || link->origin_ != Origin::kAccepted) continue;
    const Lock lock(link->mutex_);
    if (link->key_ == id && !link->over_) return link;
  }
  return nullptr;
}

void TcpStreams::on_join(std::size_t from, ByteView bytes) {
  const Result<Message> message = parse_message(bytes);
  if (!message.ok()) return refuse(from, message.status());
  const Result<StreamJoin> join = decode_stream_join(*message);
  if (!join.ok()) return refuse(from, join.status());
  Stream& stream = streams_[from];
  if (from > 0 && origin_ == Origin::kOpened && !stream.joined) {
    if (join->link != key_ || join->stream != from) {
      return refuse(from, corrupt("the answer to a JOIN names another connection"));
    }
    const Lock lock(mutex_);
    stream.joined = true;
    return;
  }
  if (from > 0 || origin_ != Origin::kAccepted || delivered_ > 0 || key() != TransferId{}) {
    return refuse(from, corrupt("a JOIN in the middle of a link"));
  }
  const std::shared_ptr<TcpStreams> home = find(join->link);
  const Status status = home ? home->take_in(join->stream, stream.connection)
                             : corrupt("a JOIN with an id that no link here has");
  if (!status.ok()) return refuse(from, status);
  {
    const Lock lock(mutex_);
    over_ = true;
    stream.joined = false;
    stream.connection.reset();
  }
  const std::shared_ptr<LinkEvents> events = std::exchange(events_, nullptr);
  if (events) events->on_closed(aborted(peer_ + " is a part of another link"));
}

// A connection with this link's key.
Status TcpStreams::take_in(std::size_t number, const std::shared_ptr<TcpConnection>& connection) {
  const Lock lock(mutex_);
  Stream& stream = streams_[number];
  if (stream.connection || stream.delivered > 0 || stream.ended) {
    return corrupt("a JOIN as number " + std::to_string(number) + ", which the link has already");
  }
  // The answer first: who asked sends nothing before it, and expects nothing.
  KVLANE_TRY(
      connection->post(share(encode_stream_join({key_, static_cast<std::uint32_t>(number)}))));
  connection->attach(std::make_shared<Ear>(shared_from_this(), number));
  stream.connection = connection;
  stream.joined = true;
  return {};
}

// Ending.

std::size_t TcpStreams::standing() const {
  return std::ranges::count_if(streams_, [](const Stream& s) { return s.joined && !s.ended; });
}

void TcpStreams::close() {
  {
    const Lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    over_ = true;
    for (const Stream& stream : streams_) {
      if (stream.connection) stream.connection->close();
    }
  }
  asio::post(loop_->io, [self = shared_from_this()] { self->forget_user(); });
}

// Nobody is told anything any more, and nothing is waited for.
void TcpStreams::forget_user() {
  events_.reset();
  joining_until_.cancel();
  fence_watch_.cancel();
  ending_until_.cancel();
  forget_unjoined();
}

void TcpStreams::stop() {
  std::vector<std::shared_ptr<TcpConnection>> connections;
  {
    const Lock lock(mutex_);
    over_ = closed_ = true;
    for (const Stream& stream : streams_) {
      if (stream.joined) connections.push_back(stream.connection);
    }
  }
  forget_user();
  for (const auto& connection : connections) connection->stop();
}

void TcpStreams::on_closed(std::size_t from, Status why) {
  Stream& stream = streams_[from];
  if (!stream.joined) {  // it never was a part of the link, which goes on without it
    const Lock lock(mutex_);
    stream.connection.reset();
    return;
  }
  stream.ended = true;
  if (why.code() != Code::kAborted) return finish(why, why.code() != Code::kUnavailable);
  if (standing() == 0) return finish(std::move(why), true);
  {
    const Lock lock(mutex_);
    over_ = true;
  }
  ending_until_.expires_after(ticks(kStreamsEndLimit));
  ending_until_.async_wait([self = shared_from_this(), why](const Error& error) {
    if (!error) self->finish(why, true);
  });
}

// The link is over. Orderly: its other connections may still send what they have.
void TcpStreams::finish(Status why, bool orderly) {
  std::vector<std::shared_ptr<TcpConnection>> others;
  {
    const Lock lock(mutex_);
    over_ = true;
    for (const Stream& stream : streams_) {
      if (stream.joined && !stream.ended) others.push_back(stream.connection);
    }
  }
  const std::shared_ptr<LinkEvents> events = std::exchange(events_, nullptr);
  forget_user();
  for (const auto& connection : others) orderly ? connection->close() : connection->drop();
  if (events) events->on_closed(std::move(why));
}

// The peer broke the protocol on that connection.
void TcpStreams::refuse(std::size_t from, const Status& why) {
  streams_[from].connection->refuse_soon(why.with_context(peer_));
}

}  // namespace kvlane
