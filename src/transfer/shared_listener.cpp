// Guests come, send one offer with one file, and are matched with a connection.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_listener.h"

#include <sys/socket.h>

#include <array>
#include <cstring>
#include <utility>

namespace kvlane {
namespace {

namespace asio = boost::asio;
using asio::local::stream_protocol;

// Between two looks for a connection that an offer has overtaken.
constexpr std::chrono::milliseconds kMatchPause{2};

// The bytes that came, and the one file that may come with them. More files than one are closed.
Bytes receive_offer(int socket, OwnedFile* file) {
  Bytes bytes(kSharedOfferBytes + 1);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(4 * sizeof(int))> control{};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  int files = 0;
  for (cmsghdr* at = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); at != nullptr;
       at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i, ++files) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(at) + i * sizeof(int), sizeof one);
      file->reset(one);  // the one before is closed
    }
  }
  if (files != 1 || (message.msg_flags & MSG_CTRUNC) != 0) file->reset();
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

}  // namespace

// Who has come to the name, until it is known what becomes of it.
struct SharedListener::Guest {
  Guest(std::shared_ptr<SharedListener> host, stream_protocol::socket guest_socket)
      : listener(std::move(host)), socket(std::move(guest_socket)), timer(listener->io_) {}

  const std::shared_ptr<SharedListener> listener;
  stream_protocol::socket socket;
  asio::steady_timer timer;
  SharedOffer offer;
  TimePoint came{};  // the offer
  std::shared_ptr<SharedAgreement> agreement;
};

SharedListener::SharedListener(asio::io_context& io, stream_protocol::acceptor socket)
    : io_(io), socket_(std::move(socket)), pause_(io) {}

std::shared_ptr<SharedListener> SharedListener::open(asio::io_context& io, std::uint16_t port) {
  Error error;
  stream_protocol::acceptor socket(io);
  socket.open(stream_protocol(), error);
  if (!error) socket.bind(stream_protocol::endpoint(shared_memory_name(port)), error);
  if (!error) socket.listen(asio::socket_base::max_listen_connections, error);
  if (error) return nullptr;
  return std::make_shared<SharedListener>(io, std::move(socket));
}

void SharedListener::start(Matcher matcher) {
  matcher_ = std::move(matcher);
  accept();
}

void SharedListener::close() {
  closed_ = true;
  matcher_ = nullptr;
  Error ignored;
  socket_.close(ignored);
  pause_.cancel();
  for (const auto& weak : guests_) {
    const auto guest = weak.lock();
    if (!guest) continue;
    guest->socket.close(ignored);
    guest->timer.cancel();
  }
}

void SharedListener::accept() {
  socket_.async_accept(
      [self = shared_from_this()](const Error& error, stream_protocol::socket socket) {
        if (self->closed_) return;
        if (error) {
          self->pause_.expires_after(kAcceptPause);
          return self->pause_.async_wait([self](const Error&) {
            if (!self->closed_) self->accept();
          });
        }
        std::erase_if(self->guests_, [](const auto& guest) { return guest.expired(); });
        if (self->guests_.size() < kSharedOffersMax && is_same_user(socket.native_handle())) {
          const auto guest = std::make_shared<Guest>(self, std::move(socket));
          self->guests_.push_back(guest);
          self->receive(guest);
        }
        self->accept();
      });
}

void SharedListener::receive(const std::shared_ptr<Guest>& guest) {
  guest->timer.expires_after(
      std::chrono::duration_cast<asio::steady_timer::duration>(kSharedOfferLimit));
  guest->timer.async_wait([guest](const Error& error) {
    Error ignored;
    if (!error) guest->socket.close(ignored);
  });
  guest->socket.async_wait(stream_protocol::socket::wait_read, [guest](const Error& error) {
    guest->timer.cancel();
    if (error || !guest->socket.is_open()) return;
    OwnedFile file;
    const Bytes bytes = receive_offer(guest->socket.native_handle(), &file);
    const auto offer = parse_shared_offer(bytes);
    if (!offer.ok() || !file) return;  // the socket closes: no
    auto segment = SharedSegment::adopt(file, offer->ring_bytes);
    if (!segment.ok()) return;
    guest->offer = *offer;
    guest->came = SteadyClock::now();
    SharedListener& listener = *guest->listener;
    guest->agreement = std::make_shared<SharedAgreement>(
        listener.io_, std::move(guest->socket), std::move(*segment), SharedStream::Side::kAcceptor);
    listener.match(guest);
  });
}

// An offer may overtake its connection, which the system has but nobody has accepted yet.
void SharedListener::match(const std::shared_ptr<Guest>& guest) {
  if (closed_ || matcher_(guest->offer, guest->agreement) != Match::kUnknown) return;
  if (SteadyClock::now() - guest->came > kSharedMatchLimit) return;
  guest->timer.expires_after(kMatchPause);
  guest->timer.async_wait([guest](const Error&) { guest->listener->match(guest); });
}

}  // namespace kvlane
