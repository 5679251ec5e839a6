// One TCP connection with deadlines: the only place where HTTP touches a socket.
//
// Being a plain class and not a template, it keeps socket code out of every file that parses or
// routes, which would otherwise take tens of seconds each to compile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "kvlane/status.h"
#include "transfer/link.h"

namespace kvlane {

namespace asio = boost::asio;

// A time point `wait` from now.
inline TimePoint deadline_after(Seconds wait) {
  return SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(wait);
}

// To be used on its executor's thread only; one read or write at a time. Errors: kTimeout after a
// deadline, kAborted after close(), else kUnavailable with the system's words. After any error the
// connection can only be closed. Movable; closes when destroyed.
class TcpStream {
 public:
  explicit TcpStream(const asio::any_io_executor& executor);
  explicit TcpStream(asio::ip::tcp::socket socket);
  TcpStream(TcpStream&&) noexcept = default;
  TcpStream& operator=(TcpStream&&) noexcept = delete;
  ~TcpStream();

  asio::awaitable<Status> connect(const Address& peer, TimePoint deadline);

  // At least one byte; 0 at the orderly end of what the peer sends.
  asio::awaitable<Result<std::size_t>> read_some(std::span<char> into, TimePoint deadline);

  // Everything. The peer must take some of it at least every `stall`.
  asio::awaitable<Status> write_all(std::string_view bytes, Seconds stall);

  // Calls `on_gone` once when the peer has closed or reset the connection, also behind bytes that
  // nobody has read yet; then it may take a quarter of a second. Ends with stop_watching(). A peer
  // that closes only its sending half counts as gone.
  void watch_peer(std::function<void()> on_gone);
  void stop_watching();

  // Says that nothing more will be sent and reads what the peer still sends, so that it sees our
  // last bytes before a reset. Ends at `deadline`.
  asio::awaitable<void> linger(TimePoint deadline);

  // Makes whatever is running fail. May be called while a coroutine is suspended in this stream.
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvlane
