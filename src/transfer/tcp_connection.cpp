// TCP connections over Asio's callbacks. Asio moves at most 64 KiB per system call unless a
// completion condition allows more; large slabs need that.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>

#include "transfer/seconds_text.h"
#include "transfer/tcp_progress.h"

namespace kvlane {
namespace {

namespace asio = boost::asio;
using boost::asio::ip::tcp;
using Lock = std::lock_guard<std::mutex>;

// Bytes one read or write call may move.
constexpr std::size_t kCallBytesMax = std::size_t{8} << 20;
// Messages one write call may gather; the system takes 1,024 pieces, Asio 64.
constexpr std::size_t kGatherMax = 32;
// The memory of a message is used for the next one, unless it is so long that few are like it.
constexpr std::size_t kKeptMessageBytesMax = std::size_t{4} << 20;
// A write that the system takes at once: messages without frames, mostly.
constexpr std::size_t kSmallWriteMax = std::size_t{16} << 10;

// As many more bytes as one call may move, until `total` are there.
auto until(std::size_t total) {
  return [total](const boost::system::error_code& error, std::size_t moved) -> std::size_t {
    return error || moved >= total ? 0 : std::min(total - moved, kCallBytesMax);
  };
}

bool looks_like_http(ByteView bytes) {
  constexpr std::string_view kMethods[] = {"GET ", "HEAD", "POST", "PUT ", "DELE",
                                           "CONN", "OPTI", "TRAC", "PATC", "PRI "};
  const std::string_view begin = as_text(bytes.first(std::min<std::size_t>(bytes.size(), 4)));
  return std::ranges::any_of(kMethods, [&](std::string_view m) { return m.starts_with(begin); });
}

// For the person who pointed a browser or a proxy at the wrong port.
Bytes http_answer() {
  constexpr std::string_view kSentence =
      "This port speaks the kvlane transfer protocol, not HTTP: see spec/transfer.md\n";
  const std::string text =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(kSentence.size()) + "\r\n\r\n" + std::string(kSentence);
  const ByteView bytes = as_byte_view(text);
  return {bytes.begin(), bytes.end()};
}

// What the system may hold of a link beyond what is on its way. By itself it takes megabytes, which
// have left the caches when they are sent, and floods queues of virtual links; with this the
// receiver finds in the caches what the sender has just copied. Measured over virtual links
// (docs/bench.md): between namespaces 1.6 to 1.8 times as fast as without, where 384 KiB lose a
// tenth; over loopback, where 128 KiB let the sender wait, up to 1.2 times.
constexpr int kUnsentBytes = 192 << 10;

// Options that make a link fast and notice its death; a system that lacks one still works. With
// TCP_USER_TIMEOUT a link on which nothing moves ends at the first probe behind that time, however
// many went unanswered: half of it passes before the first, a quarter from one to the next.
void tune(TcpConnection::Socket& socket, Seconds user_timeout) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int name, int value) {
    (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, name, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, std::max(1, static_cast<int>(user_timeout.count() / 2)));
  set(TCP_KEEPINTVL, std::max(1, static_cast<int>(user_timeout.count() / 4)));
  set(TCP_USER_TIMEOUT, static_cast<int>(user_timeout.count() * 1000));
  set(TCP_NOTSENT_LOWAT, kUnsentBytes);
}

}  // namespace

TcpConnection::TcpConnection(std::shared_ptr<TcpLoop> loop, Socket socket, std::string peer,
                             Origin origin)
    : loop_(std::move(loop)),
      peer_(std::move(peer)),
      origin_(origin),
      socket_(std::move(socket)),
      resolver_(loop_->io),
      deadline_(loop_->io) {
  if (origin_ == Origin::kAccepted) ++loop_->accepted;
}

TcpConnection::~TcpConnection() {
  if (origin_ == Origin::kAccepted) --loop_->accepted;
}

// Opening.

void TcpConnection::start(std::shared_ptr<ConnectionEvents> events) {
  events_ = std::move(events);
  established();
}

void TcpConnection::connect(const Address& address, std::shared_ptr<ConnectionEvents> events) {
  if (is_closing()) return end();
  events_ = std::move(events);
  const Seconds limit = loop_->options.connect_timeout;
  end_after(limit, unavailable("no connection to " + peer_ + " within " + seconds_text(limit)));
  Error not_numeric;
  const auto numeric = asio::ip::make_address(address.host, not_numeric);
  if (!not_numeric) return connect_to({tcp::endpoint(numeric, address.port)});
  resolver_.async_resolve(
      address.host, std::to_string(address.port), tcp::resolver::numeric_service,
      [self = shared_from_this()](const Error& error, const tcp::resolver::results_type& found) {
        if (error)
          return self->fail(
              unavailable("the name of " + self->peer_ + " was not found: " + error.message()));
        self->connect_to({found.begin(), found.end()});
      });
}

void TcpConnection::connect_to(const Endpoints& endpoints) {
  if (is_closing()) return end();
  const auto kept = std::make_shared<Endpoints>(endpoints);  // Asio wants them until the end
  asio::async_connect(
      socket_, *kept, [self = shared_from_this(), kept](const Error& error, const tcp::endpoint&) {
        if (error) {
          return self->fail(
              unavailable("no connection to " + self->peer_ + ": " + error.message()));
        }
        self->deadline_.expires_at(asio::steady_timer::time_point::max());
        self->established();
      });
}

void TcpConnection::established() {
  if (is_closing()) return end();
  tune(socket_, loop_->options.user_timeout);
  connected_ = true;
  read_header();
  if (origin_ == Origin::kOpened && loop_->options.shared_memory) offer_memory();
  wake_writer();
}

Address TcpConnection::remote() const {
  Error error;
  const tcp::endpoint end = socket_.remote_endpoint(error);
  return error ? Address() : Address{end.address().to_string(), end.port()};
}

// Shared memory.

void TcpConnection::offer_memory() {
  Error error;
  const tcp::endpoint local = socket_.local_endpoint(error);
  if (error) return;
  const tcp::endpoint peer = socket_.remote_endpoint(error);
  if (error) return;
  agreement_ =
      SharedAgreement::offer(loop_->io, local, peer, loop_->options.shared_ring_bytes,
                             [self = shared_from_this()](std::shared_ptr<SharedStream> stream) {
                               self->on_agreed(std::move(stream));
                             });
}

SharedListener::Match TcpConnection::take(const SharedOffer& offer,
                                          std::shared_ptr<SharedAgreement> agreement) {
  using Match = SharedListener::Match;
  Error error;
  const tcp::endpoint local = socket_.local_endpoint(error);
  const tcp::endpoint peer = error ? tcp::endpoint() : socket_.remote_endpoint(error);
  if (error || origin_ != Origin::kAccepted || !offer.means(peer, local)) return Match::kUnknown;
  if (is_closing() || wrote_ || !first_message_ || agreement_ || shared_) return Match::kRefused;
  const bool accepted =
      agreement->accept([self = shared_from_this()](std::shared_ptr<SharedStream> stream) {
        self->on_agreed(std::move(stream));
      });
  if (!accepted) return Match::kRefused;
  agreement_ = std::move(agreement);
  return Match::kTaken;
}

// Or not agreed, without a stream.
void TcpConnection::on_agreed(std::shared_ptr<SharedStream> stream) {
  agreement_.reset();
  if (stream && !first_message_) {  // its body may be on its way to where the ring's would go
    stream->close();
    return on_stray({}, 1);
  }
  if (stream) {
    {
      const Lock lock(mutex_);
      if (ended_) return stream->close();
      path_ = LinkPath::kSharedMemory;
    }
    shared_ = std::move(stream);
    Error ignored;
    socket_.cancel(ignored);  // the read of a header; on_stray() hears of it
    watch();
    shared_->start();
    read_header();
  }
  wake_writer();
}

// The read that was under way over TCP when the link left it.
void TcpConnection::on_stray(const Error& error, std::size_t bytes) {
  if (bytes > 0 || !error) {
    return fail(corrupt(peer_ + " sent bytes over TCP on a link in shared memory"));
  }
  if (error != asio::error::operation_aborted) shared_->end_reading(error);
}

// Over TCP comes nothing any more but its end, which is that of the peer.
void TcpConnection::watch() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const Error& error) {
    if (error) return;
    std::byte stray{0};
    const ssize_t got = ::recv(self->socket_.native_handle(), &stray, 1, MSG_DONTWAIT);
    if (got > 0) return self->on_stray({}, 1);
    if (got == 0) return self->shared_->end_reading(asio::error::eof);
    if (errno == EAGAIN || errno == EINTR) return self->watch();
    self->shared_->end_reading(Error(errno, boost::system::system_category()));
  });
}

// Reading.

void TcpConnection::read_header() {
  const auto is_foreign = [this](std::size_t bytes) {
    return !may_begin_message(ByteView(header_).first(bytes));
  };
  if (shared_) {
    const auto on_read = [self = shared_from_this()](const Error& error, std::size_t bytes) {
      self->on_header(error, bytes);
    };
    return shared_->read(header_, on_read, is_foreign);
  }
  const auto unless_foreign = [this, is_foreign](const Error& error, std::size_t bytes) {
    return error || shared_ || is_foreign(bytes) ? 0 : header_.size() - bytes;
  };
  asio::async_read(socket_, asio::buffer(header_), unless_foreign,
                   [self = shared_from_this()](const Error& error, std::size_t bytes) {
                     self->shared_ ? self->on_stray(error, bytes) : self->on_header(error, bytes);
                   });
}

void TcpConnection::on_header(const Error& error, std::size_t bytes) {
  if (is_closing()) return error ? end() : discard();
  const ByteView header = ByteView(header_).first(bytes);
  if (!may_begin_message(header)) {
    if (looks_like_http(header)) {
      return refuse(corrupt(peer_ + " sent an HTTP request to the port for transfers"),
                    share(http_answer()));
    }
  } else if (error == asio::error::eof && bytes == 0) {
    return fail(aborted(peer_ + " closed the link"));
  } else if (error) {
    return fail(broke(error, ""));
  }
  Result<MessageHeader> parsed = parse_message_header(header);
  if (parsed.ok() && first_message_ && parsed->body_bytes > kControlBodyBytesMax) {
    parsed = corrupt("the first message has " + std::to_string(parsed->body_bytes) +
                     " bytes, at most " + std::to_string(kControlBodyBytesMax) + " are allowed");
  }
  if (!parsed.ok()) {
    return refuse(parsed.status().with_context(peer_),
                  std::make_shared<const Bytes>(encode_error({}, parsed.status())));
  }
  first_message_ = false;
  message_bytes_ = header_.size() + parsed->body_bytes;
  try {
    if (message_.size() < message_bytes_) message_.resize(message_bytes_);
  } catch (const std::bad_alloc&) {
    return fail(exhausted("no memory for a message of " + std::to_string(message_bytes_) +
                          " bytes from " + peer_));
  }
  std::ranges::copy(header_, message_.begin());
  read_body(parsed->body_bytes);
}

void TcpConnection::read_body(std::size_t bytes) {
  const std::span<std::byte> body(message_.data() + header_.size(), bytes);
  const auto on_read = [self = shared_from_this()](const Error& error, std::size_t) {
    self->on_body(error);
  };
  if (shared_) return shared_->read(body, on_read);
  asio::async_read(socket_, asio::buffer(body.data(), body.size()), until(bytes), on_read);
}

void TcpConnection::on_body(const Error& error) {
  if (is_closing()) return error ? end() : discard();
  if (error) return fail(broke(error, " inside a message"));
  // A copy of the pointer: close() from within the call drops events_ later, fail() at once.
  const std::shared_ptr<ConnectionEvents> events = events_;
  if (events) events->on_message(ByteView(message_).first(message_bytes_));
  if (message_.size() > kKeptMessageBytesMax) message_ = Bytes();
  if (!paused_) read_header();
}

void TcpConnection::resume() {
  if (std::exchange(paused_, false)) read_header();
}

// Reads and drops what comes until the peer ends its direction, so that our last messages are not
// thrown away by a reset.
void TcpConnection::discard() {
  const auto on_read = [self = shared_from_this()](const Error& error, std::size_t) {
    error ? self->end() : self->discard();
  };
  shared_ ? shared_->read(header_, on_read)
          : socket_.async_read_some(asio::buffer(header_), on_read);
}

// Writing.

Status TcpConnection::post(std::shared_ptr<const Bytes> message) {
  const Lock lock(mutex_);
  if (closing_ || ended_) return unavailable("the link to " + peer_ + " is closed");
  queued_bytes_ += message->size();
  queue_.push_back(std::move(message));
  if (!std::exchange(writing_, true)) {
    asio::post(loop_->io, [self = shared_from_this()] { self->start_write(); });
  }
  return {};
}

// Unless a write is under way, or start_write() is already on its way: two writes at once would mix
// their messages.
void TcpConnection::wake_writer() {
  {
    const Lock lock(mutex_);
    if (std::exchange(writing_, true)) return;
  }
  start_write();
}

void TcpConnection::start_write() {
  bool flushed = false;
  {
    const Lock lock(mutex_);
    if (ended_) return;
    if (agreement_) {  // which wakes the writer when it is over
      writing_ = false;
      return;
    }
    std::size_t bytes = 0;
    while (connected_ && !queue_.empty() && in_flight_.size() < kGatherMax &&
           bytes < kCallBytesMax) {
      bytes += queue_.front()->size();
      in_flight_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    writing_ = !in_flight_.empty();
    flushed = !writing_ && closing_;
  }
  if (flushed) {
    Error ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    if (stopping_) end();
  }
  std::size_t total = 0;
  for (const auto& message : in_flight_) total += message->size();
  measure(total);
  if (!in_flight_.empty()) write(total);
}

void TcpConnection::write(std::size_t total) {
  const auto on_written = [self = shared_from_this()](const Error& error, std::size_t) {
    self->on_written(error);
  };
  if (shared_) {
    std::vector<ByteView> parts;
    for (const auto& message : in_flight_) parts.emplace_back(*message);
    return shared_->write(std::move(parts), on_written);
  }
  wrote_ = true;
  std::vector<asio::const_buffer> gathered;
  for (const auto& message : in_flight_) gathered.push_back(asio::buffer(*message));
  asio::async_write(socket_, gathered, until(total), on_written);
}

void TcpConnection::on_written(const Error& error) {
  if (error) return fail(broke(error, ""));
  {
    const Lock lock(mutex_);
    for (const auto& message : in_flight_) queued_bytes_ -= message->size();
  }
  in_flight_.clear();
  start_write();
  const std::shared_ptr<ConnectionEvents> events = events_;
  if (events) events->on_written();
}

// A write of so many bytes begins, or nothing is left to write. A write is over when the system has
// taken its last byte, so from one begin to the next there was always something waiting.
void TcpConnection::measure(std::size_t bytes) {
  const bool waiting = bytes > kSmallWriteMax;
  if (!waiting && !meter_.measuring()) return;
  const std::optional<LinkProgress> progress =
      shared_ ? shared_->progress() : tcp_progress(socket_.native_handle());
  if (!progress) return;
  const TimePoint now = SteadyClock::now();
  const Lock lock(mutex_);
  waiting ? meter_.waiting(now, *progress) : meter_.idle(now, *progress);
}

LinkPath TcpConnection::path() const {
  const Lock lock(mutex_);
  return path_;
}

std::size_t TcpConnection::queued_bytes() const {
  const Lock lock(mutex_);
  return queued_bytes_;
}

std::optional<LinkSpeed> TcpConnection::speed() const {
  const Lock lock(mutex_);
  return meter_.speed();
}

// Ending.

void TcpConnection::close() {
  const Lock lock(mutex_);
  if (ended_ || std::exchange(closing_, true)) return;
  asio::post(loop_->io, [self = shared_from_this()] { self->begin_closing(kLingerLimit); });
}

void TcpConnection::stop() {
  {
    const Lock lock(mutex_);
    if (ended_) return;
    closing_ = true;
  }
  stopping_ = true;
  begin_closing(kStopLimit);
}

// closing_ is set: no message is queued any more, no event is told.
void TcpConnection::begin_closing(Seconds limit) {
  events_.reset();
  if (!connected_) return end();
  end_after(limit, {});
  wake_writer();
  if (std::exchange(paused_, false)) discard();
}

void TcpConnection::refuse_soon(const Status& why) {
  pause();
  asio::post(loop_->io, [self = shared_from_this(), why] {
    if (self->is_closing() || !std::exchange(self->paused_, false)) return;
    self->refuse(why, std::make_shared<const Bytes>(encode_error({}, why)));
  });
}

// The peer broke the protocol: tells the user and, with `answer`, the peer.
void TcpConnection::refuse(const Status& why, std::shared_ptr<const Bytes> answer) {
  const std::shared_ptr<ConnectionEvents> events = std::exchange(events_, nullptr);
  (void)post(std::move(answer));
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  begin_closing(kLingerLimit);
  discard();
  if (events) events->on_closed(why);
}

void TcpConnection::fail(Status why) {
  const std::shared_ptr<ConnectionEvents> events = std::exchange(events_, nullptr);
  const bool expected = is_closing();
  end();
  if (events && !expected) events->on_closed(std::move(why));
}

// Closes the socket; every handler under way then comes back with an error and finds nothing to do.
void TcpConnection::end() {
  events_.reset();
  {
    const Lock lock(mutex_);
    ended_ = true;
    queue_.clear();
  }
  connected_ = false;  // close() may be on its way here: it must not wait for a peer any more
  Error ignored;
  socket_.close(ignored);
  resolver_.cancel();
  deadline_.cancel();
  if (const auto agreement = std::exchange(agreement_, nullptr)) agreement->cancel();
  if (shared_) shared_->close();
}

// Why a read or a write has failed, and where.
Status TcpConnection::broke(const Error& error, const char* where) const {
  if (error == boost::system::errc::bad_message) {
    return corrupt(peer_ + " wrote an impossible position into shared memory");
  }
  return unavailable("the link to " + peer_ + " broke" + where + ": " + error.message());
}

void TcpConnection::end_after(Seconds limit, Status why) {
  deadline_.expires_after(ticks(limit));
  deadline_.async_wait([self = shared_from_this(), why = std::move(why)](const Error& error) {
    // A deadline that was moved meanwhile may come all the same if it had already passed.
    if (error || self->deadline_.expiry() > asio::steady_timer::clock_type::now()) return;
    why.ok() ? self->end() : self->fail(why);
  });
}

bool TcpConnection::is_closing() const {
  const Lock lock(mutex_);
  return closing_ || ended_;
}

}  // namespace kvlane
