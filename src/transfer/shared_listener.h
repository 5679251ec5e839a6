// The acceptor's ear for offers of shared memory beside one TCP port: spec/transfer.md section 11.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transfer/shared_offer.h"

namespace kvlane {

// Offers under way at one port; more are closed at once.
inline constexpr std::size_t kSharedOffersMax = 64;
// After a failed accept: most likely the process has no file descriptor left for now.
inline constexpr std::chrono::milliseconds kAcceptPause{100};

// On the loop's thread only, but for open().
class SharedListener : public std::enable_shared_from_this<SharedListener> {
 public:
  enum class Match {
    kTaken,    // the agreement was accepted
    kRefused,  // this connection goes on over TCP
    kUnknown,  // there is no such connection, or not yet
  };
  // Looks for the connection that an offer means.
  using Matcher =
      std::function<Match(const SharedOffer& offer, std::shared_ptr<SharedAgreement> agreement)>;

  // Null when the port's name cannot be had.
  static std::shared_ptr<SharedListener> open(boost::asio::io_context& io, std::uint16_t port);
  SharedListener(boost::asio::io_context& io, boost::asio::local::stream_protocol::acceptor socket);

  void start(Matcher matcher);
  void close();

 private:
  struct Guest;
  using Error = boost::system::error_code;

  void accept();
  void receive(const std::shared_ptr<Guest>& guest);
  void match(const std::shared_ptr<Guest>& guest);

  boost::asio::io_context& io_;
  boost::asio::local::stream_protocol::acceptor socket_;
  boost::asio::steady_timer pause_;
  Matcher matcher_;
  std::vector<std::weak_ptr<Guest>> guests_;
  bool closed_ = false;
};

}  // namespace kvlane
