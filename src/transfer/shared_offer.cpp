// Offers, and the bytes by which both sides agree.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_offer.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace kvlane {
namespace {

namespace asio = boost::asio;
using boost::asio::ip::tcp;

constexpr std::uint32_t kOfferMagic = 0x53564B8B;  // 8B 4B 56 53
constexpr std::uint16_t kOfferVersion = 1;
constexpr std::byte kYes{1};
constexpr std::byte kGo{2};

asio::ip::address_v6 wide(const asio::ip::address& address) {
  return address.is_v4() ? asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4())
                         : address.to_v6();
}

bool same(const tcp::endpoint& a, const tcp::endpoint& b) {
  return a.port() == b.port() && wide(a.address()).to_bytes() == wide(b.address()).to_bytes();
}

void write_address(ByteWriter& out, const tcp::endpoint& end) {
  const auto bytes = wide(end.address()).to_bytes();
  out.write_bytes(std::as_bytes(std::span(bytes)));
}

asio::ip::address read_address(ByteReader& in) {
  asio::ip::address_v6::bytes_type bytes{};
  const ByteView field = in.read_bytes(bytes.size());
  if (!field.empty()) std::memcpy(bytes.data(), field.data(), bytes.size());
  return asio::ip::address_v6(bytes);
}

bool say(int socket, std::byte byte) {
  return ::send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

// Does not wait: a name whose owner does not accept is no use.
OwnedFile connect_to_name(const std::string& name) {
  OwnedFile socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    return {};
  }
  return socket;
}

// The offer and the file in one message.
bool send_offer(int socket, Bytes offer, int file) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec part{offer.data(), offer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &file, sizeof file);
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(offer.size());
}

}  // namespace

bool SharedOffer::is_to(const tcp::endpoint& bound) const {
  return bound.address().is_unspecified() ? acceptor.port() == bound.port() : same(acceptor, bound);
}

bool SharedOffer::means(const tcp::endpoint& connector_end,
                        const tcp::endpoint& acceptor_end) const {
  return same(connector, connector_end) && same(acceptor, acceptor_end);
}

Bytes encode_shared_offer(const SharedOffer& offer) {
  ByteWriter out;
  out.write(kOfferMagic);
  out.write(kOfferVersion);
  out.write(std::uint16_t{0});
  out.write(offer.ring_bytes);
  out.write(std::uint32_t{0});
  write_address(out, offer.connector);
  write_address(out, offer.acceptor);
  out.write(offer.connector.port());
  out.write(offer.acceptor.port());
  out.write(std::uint32_t{0});
  return out.take();
}

Result<SharedOffer> parse_shared_offer(ByteView bytes) {
  ByteReader in(bytes);
  const auto magic = in.read<std::uint32_t>();
  const auto version = in.read<std::uint16_t>();
  std::uint32_t reserved = in.read<std::uint16_t>();
  SharedOffer offer;
  offer.ring_bytes = in.read<std::uint32_t>();
  reserved |= in.read<std::uint32_t>();
  const asio::ip::address connector = read_address(in);
  const asio::ip::address acceptor = read_address(in);
  offer.connector = {connector, in.read<std::uint16_t>()};
  offer.acceptor = {acceptor, in.read<std::uint16_t>()};
  reserved |= in.read<std::uint32_t>();
  if (in.failed() || in.remaining() != 0 || magic != kOfferMagic) {
    return corrupt("no offer of shared memory");
  }
  if (version != kOfferVersion) {
    return unsupported("an offer of shared memory of version " + std::to_string(version));
  }
  if (reserved != 0) return corrupt("an offer of shared memory with bytes that must be zero");
  if (!is_ring_size(offer.ring_bytes)) {
    return corrupt("rings of " + std::to_string(offer.ring_bytes) + " bytes were offered");
  }
  return offer;
}

std::string shared_memory_name(std::uint16_t port) {
  return std::string(1, '\0') + "kvlane-transfer-1/" + std::to_string(port);
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == ::geteuid();
}

bool is_same_host(const tcp::endpoint& local, const tcp::endpoint& peer) {
  const asio::ip::address_v6 address = wide(peer.address());
  const bool loopback = address.is_v4_mapped()
                            ? asio::ip::make_address_v4(asio::ip::v4_mapped, address).is_loopback()
                            : address.is_loopback();
  return loopback || address == wide(local.address());
}

SharedAgreement::SharedAgreement(asio::io_context& io, Doorbell socket,
                                 std::unique_ptr<SharedSegment> segment, SharedStream::Side side)
    : io_(io),
      socket_(std::move(socket)),
      segment_(std::move(segment)),
      side_(side),
      deadline_(io) {}

std::shared_ptr<SharedAgreement> SharedAgreement::offer(asio::io_context& io,
                                                        const tcp::endpoint& local,
                                                        const tcp::endpoint& peer,
                                                        std::size_t ring_bytes, Done done) {
  if (!is_same_host(local, peer)) return nullptr;
  // Before memory is taken: most often nobody has the name.
  OwnedFile socket = connect_to_name(shared_memory_name(peer.port()));
  if (!socket || !is_same_user(socket.get())) return nullptr;
  OwnedFile file;
  auto segment = SharedSegment::create(ring_bytes, &file);
  if (!segment.ok()) return nullptr;
  const SharedOffer offer{local, peer, static_cast<std::uint32_t>(ring_bytes)};
  if (!send_offer(socket.get(), encode_shared_offer(offer), file.get())) return nullptr;
  boost::system::error_code error;
  Doorbell doorbell(io);
  doorbell.assign(asio::local::stream_protocol(), socket.get(), error);
  if (error) return nullptr;
  (void)socket.release();
  const auto agreement = std::make_shared<SharedAgreement>(
      io, std::move(doorbell), std::move(*segment), SharedStream::Side::kConnector);
  agreement->await(kYes, kSharedAnswerLimit, std::move(done));
  return agreement;
}

bool SharedAgreement::accept(Done done) {
  if (!say(socket_.native_handle(), kYes)) return false;
  await(kGo, std::nullopt, std::move(done));
  return true;
}

void SharedAgreement::cancel() {
  done_ = nullptr;
  boost::system::error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
}

void SharedAgreement::await(std::byte expected, std::optional<Seconds> limit, Done done) {
  done_ = std::move(done);
  const auto on_ready = [self = shared_from_this(),
                         expected](const boost::system::error_code& error) {
    if (error) return self->finish(false);
    self->on_answer(expected);
  };
  socket_.async_wait(Doorbell::wait_read, on_ready);
  if (!limit) return;
  deadline_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(*limit));
  deadline_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->finish(false);
  });
}

void SharedAgreement::on_answer(std::byte expected) {
  std::byte answer{0};
  const bool came =
      socket_.is_open() && ::recv(socket_.native_handle(), &answer, 1, MSG_DONTWAIT) == 1;
  const bool right = came && answer == expected;
  finish(right && (side_ == SharedStream::Side::kAcceptor || say(socket_.native_handle(), kGo)));
}

void SharedAgreement::finish(bool agreed) {
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;  // cancelled, or both the answer and the deadline have come
  deadline_.cancel();
  if (!agreed) {
    cancel();
    return done(nullptr);
  }
  done(std::make_shared<SharedStream>(io_, std::move(socket_), std::move(segment_), side_));
}

}  // namespace kvlane
