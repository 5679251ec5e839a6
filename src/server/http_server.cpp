// Accepting connections, reading requests with Beast's parser, running handlers.
// SPDX-License-Identifier: Apache-2.0
#include "server/http_server.h"

#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <mutex>
#include <set>

#include "server/api_error.h"
#include "server/coroutine.h"
#include "server/log.h"
#include "server/tcp_stream.h"

namespace kvlane {

namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// After an error response the rest of the request is read and dropped for at most this long.
constexpr Seconds kLingerTime{2};
// Pause after accept() failed, for example because all file descriptors are in use.
constexpr std::chrono::milliseconds kAcceptPause{100};

using Parser = http::request_parser<http::string_body>;

// What became of reading a request.
struct Incoming {
  bool complete = false;
  bool keep_alive = false;
  bool chunked = false;           // the client understands chunks (HTTP/1.1)
  std::optional<ApiError> error;  // to be answered; nothing at all when the client just went away
};

ApiError parse_failure(const error_code& error, const HttpServerOptions& options) {
  if (error == http::error::body_limit) {
    return {413,
            "The request's body is longer than the limit of " +
                std::to_string(options.body_bytes_max) + " bytes.",
            "", ""};
  }
  if (error == http::error::header_limit) {
    return {431,
            "The request's header is longer than the limit of " +
                std::to_string(options.header_bytes_max) + " bytes.",
            "", ""};
  }
  return {400, "The request is not valid HTTP/1.1: " + error.message() + ".", "", ""};
}

}  // namespace

// One connection. `busy` and `cancel` let the server end it.
struct Connection {
  explicit Connection(tcp::socket socket) : stream(std::move(socket)) {}
  TcpStream stream;
  std::string unread;      // bytes behind the request that is being parsed
  bool busy = false;       // a request is being read or handled
  bool handled = false;    // a handler runs, which `cancel` ends
  bool last = false;       // close when it is done
  bool refused = false;    // one too many: it is told so and closed
  bool cut_short = false;  // the server did not wait for its handler
  asio::cancellation_signal cancel;
};

struct HttpServer::Core : std::enable_shared_from_this<HttpServer::Core> {
  Core(EventLoop& event_loop, HttpServerOptions server_options, HttpHandler server_handler)
      : loop(event_loop),
        executor(event_loop.executor()),
        options(std::move(server_options)),
        handler(std::move(server_handler)),
        acceptor(executor) {}

  Status listen();
  asio::awaitable<void> accept_connections();
  asio::awaitable<void> serve(std::shared_ptr<Connection> connection);
  asio::awaitable<void> refuse(Connection& connection);
  asio::awaitable<bool> serve_one(Connection& connection);
  asio::awaitable<Incoming> read_request(Connection& connection, Parser& parser,
                                         HttpRequest& request);
  asio::awaitable<Result<bool>> read_more(Connection& connection, TimePoint deadline);
  asio::awaitable<void> run_handler(const HttpRequest& request, HttpReply& reply);
  void add(const std::shared_ptr<Connection>& connection);
  void remove(const std::shared_ptr<Connection>& connection);
  void end_connections(bool busy_ones_too);

  EventLoop& loop;
  asio::any_io_executor executor;
  HttpServerOptions options;
  HttpHandler handler;
  tcp::acceptor acceptor;
  Address bound;
  bool stopping = false;
  std::set<std::shared_ptr<Connection>> connections;  // of the loop's thread

  // For stop(), which waits on another thread.
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t open_count = 0;
};

Status HttpServer::Core::listen() {
  const std::string where = to_string(options.bind);
  error_code error;
  tcp::resolver resolver(executor);
  const auto found = resolver.resolve(options.bind.host, std::to_string(options.bind.port),
                                      tcp::resolver::passive, error);
  if (error) return unavailable("cannot listen on " + where + ": " + error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return unavailable("cannot listen on " + where + ": " + error.message());
  bound = {options.bind.host, acceptor.local_endpoint().port()};
  return {};
}

asio::awaitable<void> HttpServer::Core::accept_connections() {
  const std::shared_ptr<Core> self = shared_from_this();
  asio::steady_timer pause(executor);
  error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  while (!stopping) {
    tcp::socket socket = co_await acceptor.async_accept(token);
    if (stopping) break;
    if (error) {
      log_warning("accepting a connection failed: " + error.message());
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(token);
      continue;
    }
    // Those that are told that they are too many are a few at most, too.
    if (connections.size() >= 2 * options.connections_max) continue;
    const auto connection = std::make_shared<Connection>(std::move(socket));
    connection->refused = connections.size() >= options.connections_max;
    add(connection);
    asio::co_spawn(executor, serve(connection), asio::detached);
  }
}

void HttpServer::Core::add(const std::shared_ptr<Connection>& connection) {
  connections.insert(connection);
  const std::lock_guard lock(mutex);
  open_count = connections.size();
}

void HttpServer::Core::remove(const std::shared_ptr<Connection>& connection) {
  connections.erase(connection);
  const std::lock_guard lock(mutex);
  open_count = connections.size();
  changed.notify_all();
}

asio::awaitable<void> HttpServer::Core::serve(std::shared_ptr<Connection> connection) {
  const std::shared_ptr<Core> self = shared_from_this();
  try {
    if (connection->refused) co_await refuse(*connection);
    bool go_on = !connection->refused;
    while (go_on && !connection->last) go_on = co_await serve_one(*connection);
  } catch (const std::exception& error) {
    log_warning(std::string("a connection ended with an exception: ") + error.what());
  }
  connection->stream.close();
  remove(connection);
}

asio::awaitable<void> HttpServer::Core::refuse(Connection& connection) {
  const HttpRequest unread;
  HttpReply reply(connection.stream, unread, false, false, kLingerTime);
  const HttpResponse response =
      to_response({503,
                   "The server has reached its limit of " +
                       std::to_string(options.connections_max) + " connections.",
                   "", "exhausted"});
  const Status sent = co_await reply.send(response);
  if (sent.ok()) co_await connection.stream.linger(deadline_after(kLingerTime));
}

// One request and its answer. False: close the connection.
asio::awaitable<bool> HttpServer::Core::serve_one(Connection& connection) {
  Parser parser;
  HttpRequest request;
  const Incoming incoming = co_await read_request(connection, parser, request);
  if (!incoming.complete && !incoming.error) co_return false;
  const bool keep_alive = incoming.keep_alive && !stopping;
  HttpReply reply(connection.stream, request, incoming.chunked, keep_alive, options.write_timeout);
  if (incoming.error) {
    const HttpResponse response = to_response(*incoming.error);
    const Status sent = co_await reply.send(response);
    if (sent.ok()) co_await connection.stream.linger(deadline_after(kLingerTime));
    co_return false;
  }
  connection.stream.watch_peer([&connection] {
    connection.last = true;
    connection.cancel.emit(asio::cancellation_type::terminal);
  });
  auto token = asio::bind_cancellation_slot(connection.cancel.slot(), asio::use_awaitable);
  connection.handled = true;
  co_await asio::co_spawn(executor, run_handler(request, reply), token);
  connection.handled = false;
  connection.stream.stop_watching();
  if (connection.cut_short) {
    const ApiError error = to_api_error(unavailable("The server stops."));
    co_await reply.cut_short(error);
  }
  connection.busy = false;
  log_request(request.method, request.path, reply.status(), request.id,
              seconds_since(request.received));
  co_return reply.finished() && reply.keep_alive();
}

// Catches everything: an exception is a bug or the client's leaving, and ends this request only.
asio::awaitable<void> HttpServer::Core::run_handler(const HttpRequest& request, HttpReply& reply) {
  std::string failure;
  try {
    co_await handler(request, reply);
    if (!reply.started()) failure = "the request was not answered";
  } catch (const boost::system::system_error& error) {
    if (error.code() == asio::error::operation_aborted) co_return;  // the client is gone
    failure = error.what();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (failure.empty()) co_return;
  log_warning(request.method + " " + request.path + ": " + failure);
  if (reply.started()) co_return;  // unfinished: the connection is closed
  const ApiError error{500, "The server failed on this request.", "", "internal"};
  const HttpResponse response = to_response(error);
  const Status sent = co_await reply.send(response);
  if (!sent.ok()) log_debug(request.path + ": " + sent.message());
}

// Appends what arrives to `unread`. False: the client has closed.
asio::awaitable<Result<bool>> HttpServer::Core::read_more(Connection& connection,
                                                          TimePoint deadline) {
  std::array<char, 16 << 10> buffer;  // not initialised: it is written before it is read
  const std::span<char> into(buffer);
  const Result<std::size_t> count = co_await connection.stream.read_some(into, deadline);
  if (!count.ok()) co_return count.status();
  connection.unread.append(buffer.data(), *count);
  co_return *count > 0;
}

asio::awaitable<Incoming> HttpServer::Core::read_request(Connection& connection, Parser& parser,
                                                         HttpRequest& request) {
  parser.header_limit(static_cast<std::uint32_t>(options.header_bytes_max));
  parser.body_limit(options.body_bytes_max);
  parser.eager(true);
  request.id = new_request_id();
  Incoming incoming;
  bool continue_sent = false;
  TimePoint deadline = deadline_after(options.idle_timeout);
  for (;;) {
    if (!connection.unread.empty()) {
      if (!connection.busy) {
        connection.busy = true;
        request.received = SteadyClock::now();
        deadline = deadline_after(options.header_timeout);
      }
      const bool had_header = parser.is_header_done();
      error_code error;
      const auto bytes = asio::buffer(connection.unread);
      const std::size_t used = parser.put(bytes, error);
      connection.unread.erase(0, used);
      if (error && error != http::error::need_more) {
        incoming.error = parse_failure(error, options);
        co_return incoming;
      }
      if (parser.is_done()) break;
      if (!had_header && parser.is_header_done()) deadline = deadline_after(options.body_timeout);
      if (parser.is_header_done() && !continue_sent &&
          boost::beast::iequals(parser.get()[http::field::expect], "100-continue")) {
        continue_sent = true;
        const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
        const Status sent = co_await connection.stream.write_all(go_on, options.write_timeout);
        if (!sent.ok()) co_return incoming;
      }
    }
    const Result<bool> more = co_await read_more(connection, deadline);
    if (!more.ok() && more.status().code() == Code::kTimeout && connection.busy) {
      incoming.error = ApiError{408, "The request did not arrive in time.", "", ""};
    }
    if (!more.ok() || !*more) co_return incoming;
  }
  incoming.keep_alive = parser.keep_alive();
  incoming.chunked = parser.get().version() >= 11;
  auto message = parser.release();
  request.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  request.path = target.substr(0, target.find('?'));
  for (const auto& field : message) {
    request.headers.add(std::string(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  const std::string_view id = request.headers.find("X-Request-Id");
  if (!id.empty() && is_safe_header_value(id)) request.id = id;
  incoming.complete = true;
  co_return incoming;
}

void HttpServer::Core::end_connections(bool busy_ones_too) {
  stopping = true;
  error_code ignored;
  acceptor.close(ignored);
  // Copied: an emitted signal may run a coroutine to its end, which removes its connection.
  const auto all = connections;
  for (const std::shared_ptr<Connection>& connection : all) {
    connection->last = true;
    if (!connection->busy) connection->stream.close();
    if (!connection->busy || !busy_ones_too) continue;
    connection->cut_short = connection->handled;
    if (connection->handled) {
      connection->cancel.emit(asio::cancellation_type::terminal);
    } else {
      connection->stream.close();
    }
  }
}

HttpServer::HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(EventLoop& loop, HttpServerOptions options,
                                                      HttpHandler handler) {
  auto core = std::make_shared<Core>(loop, std::move(options), std::move(handler));
  KVLANE_TRY(core->listen());
  asio::co_spawn(core->executor, core->accept_connections(), asio::detached);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

HttpServer::~HttpServer() { stop(Seconds(0)); }

const Address& HttpServer::address() const { return core_->bound; }

void HttpServer::stop(Seconds grace) {
  Core& core = *core_;
  core.loop.run([&core] { core.end_connections(false); });
  const auto none_open = [&core] { return core.open_count == 0; };
  std::unique_lock lock(core.mutex);
  if (core.changed.wait_for(lock, grace, none_open)) return;
  lock.unlock();
  core.loop.run([&core] { core.end_connections(true); });
  lock.lock();
  core.changed.wait(lock, none_open);
}

}  // namespace kvlane
