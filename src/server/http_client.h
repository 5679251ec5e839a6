// One HTTP/1.1 request to another server, its answer read piece by piece: gateway to worker.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "kvlane/status.h"
#include "server/http.h"

namespace kvlane {

namespace asio = boost::asio;

struct HttpCallRequest {
  std::string method = "GET";
  std::string path = "/";  // behind the URL's prefix
  HttpHeaders headers;     // Host, Content-Length and Connection are added
  std::string body;
};

struct HttpCallLimits {
  Seconds connect_timeout{2};
  Seconds head_timeout{600};  // from the request's last byte to the end of the answer's head
  Seconds read_timeout{300};  // between two pieces of the body
  Seconds write_timeout{30};
  std::size_t header_bytes_max = 16 << 10;
};

// To be used on its executor's thread only. Destroying it closes the connection, which tells a
// kvlane worker to give the request up.
class HttpCall {
 public:
  explicit HttpCall(asio::any_io_executor executor, HttpCallLimits limits = {});
  ~HttpCall();
  HttpCall(const HttpCall&) = delete;
  HttpCall& operator=(const HttpCall&) = delete;

  // Connects, sends, and reads up to the end of the head; its body is empty. kUnavailable: no
  // connection, or it broke; kCorrupt: the answer is not HTTP.
  asio::awaitable<Result<HttpResponse>> open(const Url& url, const HttpCallRequest& request);

  // The next piece of the body; empty at its end. kUnavailable when the body is cut short.
  asio::awaitable<Result<std::string>> read();

  // The rest of the body. kCorrupt when it is longer than `bytes_max`.
  asio::awaitable<Result<std::string>> read_all(std::size_t bytes_max);

  // Makes whatever is running fail with `why`. May be called while a coroutine waits in it.
  void cancel(Status why = aborted("the request was given up"));

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A whole exchange with a body of at most `bytes_max`.
asio::awaitable<Result<HttpResponse>> http_fetch(asio::any_io_executor executor, const Url& url,
                                                 const HttpCallRequest& request,
                                                 HttpCallLimits limits, std::size_t bytes_max);

// A worker's answer as its gateway passes it on: without the headers that were between those two.
HttpResponse relayed(const HttpResponse& response);

}  // namespace kvlane
