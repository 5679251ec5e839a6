// Sockets, and a timer that cancels them.
// SPDX-License-Identifier: Apache-2.0
#include "server/tcp_stream.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/coroutine.h"

namespace kvlane {

using asio::ip::tcp;
using boost::system::error_code;

namespace {

// While bytes of its next request wait, whether a peer is still there is asked so often.
constexpr std::chrono::milliseconds kPeerAskedEvery{250};

// Answers may take hours to begin; a connection that something on the way has forgotten ends after
// two minutes or so.
void notice_lost_peers(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, 60);
  set(TCP_KEEPINTVL, 10);
  set(TCP_KEEPCNT, 6);
}

}  // namespace

struct TcpStream::State {
  explicit State(const asio::any_io_executor& executor)
      : socket(executor), timer(executor), watch_timer(executor), resolver(executor) {}
  explicit State(tcp::socket accepted)
      : socket(std::move(accepted)),
        timer(socket.get_executor()),
        watch_timer(socket.get_executor()),
        resolver(socket.get_executor()) {}

  void cancel_all() {
    error_code ignored;
    socket.cancel(ignored);
    resolver.cancel();
  }

  // What an operation's error means. An operation that was aborted, and not by close() or a
  // deadline, belongs to a coroutine that is being cancelled: unwinding starts here.
  Status failure(const error_code& error, std::string_view doing) const {
    const std::string what(doing);
    if (error == asio::error::operation_aborted && !closed && !timed_out) {
      throw boost::system::system_error(error);
    }
    if (closed) return aborted(what + ": the connection was given up");
    if (timed_out) return kvlane::timed_out(what + ": the other side did not answer in time");
    return unavailable(what + ": " + error.message());
  }

  static void watch_once(const std::shared_ptr<State>& state, std::uint64_t watch,
                         std::function<void()> on_gone);
  static void watch_behind_bytes(const std::shared_ptr<State>& state, std::uint64_t watch,
                                 std::function<void()> on_gone);

  tcp::socket socket;
  asio::steady_timer timer;
  asio::steady_timer watch_timer;
  tcp::resolver resolver;
  std::uint64_t operation = 0;  // counts deadlines, so that a late timer does not hit the next one
  std::uint64_t watch = 0;      // counts watches, likewise
  bool timed_out = false;
  bool closed = false;
};

namespace {

// Cancels the stream's operation when `deadline` passes before the guard is gone.
template <class State>
class DeadlineGuard {
 public:
  DeadlineGuard(const std::shared_ptr<State>& state, TimePoint deadline) : state_(state) {
    const std::uint64_t operation = ++state->operation;
    state->timer.expires_at(deadline);
    state->timer.async_wait([weak = std::weak_ptr<State>(state), operation](error_code error) {
      const std::shared_ptr<State> alive = weak.lock();
      if (error || alive == nullptr || alive->operation != operation) return;
      alive->timed_out = true;
      alive->cancel_all();
    });
  }
  ~DeadlineGuard() {
    ++state_->operation;
    state_->timer.cancel();
  }
  DeadlineGuard(const DeadlineGuard&) = delete;
  DeadlineGuard& operator=(const DeadlineGuard&) = delete;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace

TcpStream::TcpStream(const asio::any_io_executor& executor)
    : state_(std::make_shared<State>(executor)) {}

TcpStream::TcpStream(tcp::socket socket) : state_(std::make_shared<State>(std::move(socket))) {
  error_code ignored;
  // Tokens are small and must not wait for each other.
  state_->socket.set_option(tcp::no_delay(true), ignored);
}

TcpStream::~TcpStream() {
  if (state_ != nullptr) close();
}

asio::awaitable<Status> TcpStream::connect(const Address& peer, TimePoint deadline) {
  const std::shared_ptr<State> state = state_;
  const DeadlineGuard<State> guard(state, deadline);
  const std::string doing = "connecting to " + to_string(peer);
  error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  const std::string port = std::to_string(peer.port);
  const tcp::resolver::results_type found =
      co_await state->resolver.async_resolve(peer.host, port, token);
  if (error || state->timed_out || state->closed) co_return state->failure(error, doing);
  // One address after another: async_connect over a range would open a new socket for each and hide
  // it from close().
  for (const auto& entry : found) {
    const tcp::endpoint endpoint = entry.endpoint();
    error_code ignored;
    state->socket.close(ignored);
    state->socket.open(endpoint.protocol(), error);
    if (error) continue;
    co_await state->socket.async_connect(endpoint, token);
    if (!error || state->timed_out || state->closed) break;
  }
  if (error || state->timed_out || state->closed) co_return state->failure(error, doing);
  error_code ignored;
  state->socket.set_option(tcp::no_delay(true), ignored);
  notice_lost_peers(state->socket);
  co_return Status();
}

asio::awaitable<Result<std::size_t>> TcpStream::read_some(std::span<char> into,
                                                          TimePoint deadline) {
  const std::shared_ptr<State> state = state_;
  const DeadlineGuard<State> guard(state, deadline);
  error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  const auto buffer = asio::buffer(into.data(), into.size());
  const std::size_t count = co_await state->socket.async_read_some(buffer, token);
  if (error == asio::error::eof && !state->closed) co_return std::size_t{0};
  if (error) co_return state->failure(error, "reading");
  co_return count;
}

asio::awaitable<Status> TcpStream::write_all(std::string_view bytes, Seconds stall) {
  const std::shared_ptr<State> state = state_;
  error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  while (!bytes.empty()) {
    const DeadlineGuard<State> guard(state, deadline_after(stall));
    const auto buffer = asio::buffer(bytes.data(), bytes.size());
    const std::size_t count = co_await state->socket.async_write_some(buffer, token);
    if (error) co_return state->failure(error, "writing");
    bytes.remove_prefix(count);
  }
  co_return Status();
}

void TcpStream::watch_peer(std::function<void()> on_gone) {
  // Without this, a spurious wake-up would make the peek block the whole loop.
  error_code ignored;
  state_->socket.non_blocking(true, ignored);
  State::watch_once(state_, ++state_->watch, std::move(on_gone));
}

void TcpStream::State::watch_once(const std::shared_ptr<State>& state, std::uint64_t watch,
                                  std::function<void()> on_gone) {
  auto on_event = [weak = std::weak_ptr<State>(state), watch,
                   on_gone = std::move(on_gone)](error_code error) {
    const std::shared_ptr<State> alive = weak.lock();
    if (alive == nullptr || alive->watch != watch) return;
    if (error == asio::error::operation_aborted) return;
    char byte = 0;
    error_code peek_error;
    const auto buffer = asio::buffer(&byte, 1);
    alive->socket.receive(buffer, tcp::socket::message_peek, peek_error);
    if (!error && peek_error == asio::error::would_block) {
      // The event was of bytes that have been read since: the reactor reports edges late.
      watch_once(alive, watch, on_gone);
    } else if (error || peek_error) {
      on_gone();
    } else {
      watch_behind_bytes(alive, watch, on_gone);
    }
  };
  state->socket.async_wait(tcp::socket::wait_read, std::move(on_event));
}

// The next request waits to be read, and an end behind it is no event of its own.
void TcpStream::State::watch_behind_bytes(const std::shared_ptr<State>& state, std::uint64_t watch,
                                          std::function<void()> on_gone) {
  state->watch_timer.expires_after(kPeerAskedEvery);
  state->watch_timer.async_wait(
      [weak = std::weak_ptr<State>(state), watch, on_gone = std::move(on_gone)](error_code error) {
        const std::shared_ptr<State> alive = weak.lock();
        if (error || alive == nullptr || alive->watch != watch) return;
        pollfd entry{alive->socket.native_handle(), POLLRDHUP, 0};
        if (::poll(&entry, 1, 0) > 0) {
          on_gone();
        } else {
          watch_behind_bytes(alive, watch, on_gone);
        }
      });
}

void TcpStream::stop_watching() {
  ++state_->watch;
  state_->watch_timer.cancel();
  error_code ignored;
  state_->socket.cancel(ignored);
}

asio::awaitable<void> TcpStream::linger(TimePoint deadline) {
  error_code ignored;
  state_->socket.shutdown(tcp::socket::shutdown_send, ignored);
  std::array<char, 4096> scrap{};
  for (;;) {
    const std::span<char> into(scrap);
    const Result<std::size_t> count = co_await read_some(into, deadline);
    if (!count.ok() || *count == 0) co_return;
  }
}

void TcpStream::close() {
  state_->closed = true;
  state_->watch_timer.cancel();
  state_->resolver.cancel();
  error_code ignored;
  state_->socket.close(ignored);
}

}  // namespace kvlane
