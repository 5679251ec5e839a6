// How two ends of a TCP connection agree on shared memory: the offer and the answers to it, over a
// socket of the Unix domain. spec/transfer.md section 11.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "transfer/shared_stream.h"

namespace kvlane {

inline constexpr std::size_t kSharedOfferBytes = 56;
// Of waiting for an offer and for the answer to it. A link that misses them stays on TCP for its
// life, so they are long for a machine that does something else as well.
inline constexpr Seconds kSharedOfferLimit{1};
inline constexpr Seconds kSharedAnswerLimit{0.5};
// Of waiting for the connection that an offer has overtaken.
inline constexpr Seconds kSharedMatchLimit{0.025};

// Which connection is meant, and how large its rings are.
struct SharedOffer {
  boost::asio::ip::tcp::endpoint connector;
  boost::asio::ip::tcp::endpoint acceptor;
  std::uint32_t ring_bytes = 0;

  // Whether a connection accepted by who listens at `bound` can be meant.
  bool is_to(const boost::asio::ip::tcp::endpoint& bound) const;
  // Whether both ends are those, IPv4 within IPv6 counting as what it is.
  bool means(const boost::asio::ip::tcp::endpoint& connector_end,
             const boost::asio::ip::tcp::endpoint& acceptor_end) const;
};

Bytes encode_shared_offer(const SharedOffer& offer);
// kCorrupt, or kUnsupported for another version.
Result<SharedOffer> parse_shared_offer(ByteView bytes);

// The abstract name that belongs to a port, the zero byte in front included.
std::string shared_memory_name(std::uint16_t port);
// Whether the process at the other end has this one's user.
bool is_same_user(int socket);
// Whether `peer` is on this host, seen from a connection that has `local` on this side.
bool is_same_host(const boost::asio::ip::tcp::endpoint& local,
                  const boost::asio::ip::tcp::endpoint& peer);

// One side's part of an agreement: it says one byte and waits for another. On the loop's thread.
class SharedAgreement : public std::enable_shared_from_this<SharedAgreement> {
 public:
  using Doorbell = SharedStream::Doorbell;
  // Called once: with the stream, or null if the link goes on over TCP.
  using Done = std::function<void(std::shared_ptr<SharedStream>)>;

  SharedAgreement(boost::asio::io_context& io, Doorbell socket,
                  std::unique_ptr<SharedSegment> segment, SharedStream::Side side);

  // As connector of the connection from `local` to `peer`, makes a segment and offers it. Null
  // when that cannot be; `done` is then not called.
  static std::shared_ptr<SharedAgreement> offer(boost::asio::io_context& io,
                                                const boost::asio::ip::tcp::endpoint& local,
                                                const boost::asio::ip::tcp::endpoint& peer,
                                                std::size_t ring_bytes, Done done);
  // As acceptor: says yes. False when the other side is gone; `done` is then not called.
  bool accept(Done done);
  // `done` is not called any more.
  void cancel();

 private:
  void await(std::byte expected, std::optional<Seconds> limit, Done done);
  void on_answer(std::byte expected);
  void finish(bool agreed);

  boost::asio::io_context& io_;
  Doorbell socket_;
  std::unique_ptr<SharedSegment> segment_;
  const SharedStream::Side side_;
  boost::asio::steady_timer deadline_;
  Done done_;
};

}  // namespace kvlane
