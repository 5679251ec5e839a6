// An HTTP/1.1 server for long streams and small requests: keep-alive, limits, deadlines,
// back-pressure.
//
// A handler is a coroutine on the event loop's thread. While it runs, the connection is watched:
// when the client goes away, the handler's current co_await throws, so that its destructors undo
// what it started. Write back-pressure is natural: write() returns when the socket has taken the
// bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "kvlane/status.h"
#include "server/event_loop.h"
#include "server/http.h"

namespace kvlane {

class TcpStream;
struct ApiError;

// What one request is answered with: either send(), or start_stream(), write()..., finish(). Valid
// while the handler runs. Once any of them returned an error, nothing can be said any more.
class HttpReply {
 public:
  HttpReply(TcpStream& stream, const HttpRequest& request, bool chunked, bool keep_alive,
            Seconds write_timeout);

  asio::awaitable<Status> send(const HttpResponse& response);

  // The head of a body whose length is not known; `head.body` is sent as its first piece.
  asio::awaitable<Status> start_stream(const HttpResponse& head);
  asio::awaitable<Status> write(std::string_view piece);
  asio::awaitable<Status> finish();

  // The handler was cancelled: says `error` instead of the answer, or behind the events of a
  // stream, as far as that can be done soon.
  asio::awaitable<void> cut_short(const ApiError& error);

  // The head is out: the status can no longer be changed.
  bool started() const { return started_; }
  bool finished() const { return finished_; }
  bool keep_alive() const { return keep_alive_; }
  int status() const { return status_; }
  // Closes the connection after this reply.
  void do_not_keep_alive() { keep_alive_ = false; }

 private:
  std::string head(const HttpResponse& response, std::string_view framing) const;
  asio::awaitable<Status> write_all(std::string_view bytes);

  TcpStream& stream_;
  const HttpRequest& request_;
  bool chunked_;
  bool keep_alive_;
  Seconds write_timeout_;
  bool started_ = false;
  bool finished_ = false;
  bool events_ = false;    // a stream of server-sent events
  bool told_all_ = false;  // the last of them is out
  bool writing_ = false;   // still true where a write was cancelled
  int status_ = 0;
};

using HttpHandler = std::function<asio::awaitable<void>(const HttpRequest&, HttpReply&)>;

struct HttpServerOptions {
  Address bind{"127.0.0.1", 8000};  // port 0: any free one
  // A connection costs some 10 KB beside its request. Those beyond are answered with 503.
  std::size_t connections_max = 2048;
  std::size_t header_bytes_max = 16 << 10;  // as other servers have it
  // A prompt of 128K tokens as ids is below 1 MiB, as text below 1 MiB too; chats repeat much.
  std::size_t body_bytes_max = 8 << 20;
  Seconds header_timeout{10};  // from the first byte of a request to the end of its header
  Seconds body_timeout{60};    // from the end of the header to the end of the body
  Seconds idle_timeout{75};    // between requests
  Seconds write_timeout{30};   // a client that reads nothing for that long is gone
};

class HttpServer {
 public:
  // Binds and listens before it returns: kUnavailable names the address that could not be bound.
  // `loop` must outlive the server.
  static Result<std::unique_ptr<HttpServer>> start(EventLoop& loop, HttpServerOptions options,
                                                   HttpHandler handler);
  ~HttpServer();  // stop(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The bound address, with the real port.
  const Address& address() const;

  // Accepts nothing more, closes idle connections, gives running handlers `grace` to end, then
  // cancels them and tells their clients so; no handler runs when it returns. Not to be called from
  // the loop.
  void stop(Seconds grace);

 private:
  struct Core;
  explicit HttpServer(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace kvlane
