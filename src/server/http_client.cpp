// Requests written by hand, answers read with Beast's parser.
// SPDX-License-Identifier: Apache-2.0
#include "server/http_client.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "server/coroutine.h"
#include "server/tcp_stream.h"

namespace kvlane {

namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// Pieces are handed on as they arrive; this only bounds what one read takes.
constexpr std::size_t kReadBytes = 16 << 10;

std::string request_text(const Url& url, const HttpCallRequest& request) {
  std::string text = request.method + " " + url.prefix + request.path + " HTTP/1.1\r\n";
  text += "Host: " + to_string(url.address) + "\r\nConnection: close\r\n";
  if (request.method != "GET") {
    text += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  }
  for (const auto& field : request.headers.fields())
    text += field.name + ": " + field.value + "\r\n";
  return text + "\r\n" + request.body;
}

}  // namespace

struct HttpCall::Impl {
  Impl(const asio::any_io_executor& executor, HttpCallLimits call_limits)
      : limits(call_limits), stream(executor) {
    parser.header_limit(static_cast<std::uint32_t>(limits.header_bytes_max));
    // Pieces are bounded by kReadBytes; how many of them there may be is the caller's business.
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());
    parser.eager(true);
  }

  // Why an operation failed: a connection that cancel() closed did not break by itself.
  Status reason(const Status& failure) const { return given_up ? *given_up : failure; }

  // Parses what has arrived; reads more when the parser needs it.
  asio::awaitable<Status> advance(TimePoint deadline);

  HttpCallLimits limits;
  TcpStream stream;
  http::response_parser<http::string_body> parser;
  std::string unread;
  std::optional<Status> given_up;
};

asio::awaitable<Status> HttpCall::Impl::advance(TimePoint deadline) {
  std::array<char, kReadBytes> buffer;  // not initialised: it is written before it is read
  const std::span<char> into(buffer);
  const Result<std::size_t> count = co_await stream.read_some(into, deadline);
  if (!count.ok()) co_return reason(count.status());
  error_code error;
  if (*count == 0) {
    if (!parser.got_some()) co_return unavailable("the connection was closed without an answer");
    parser.put_eof(error);
    if (error || !parser.is_done()) co_return unavailable("the answer is cut short");
    co_return Status();
  }
  unread.append(buffer.data(), *count);
  while (!unread.empty() && !parser.is_done()) {
    const auto bytes = asio::buffer(unread);
    const std::size_t used = parser.put(bytes, error);
    unread.erase(0, used);
    if (error == http::error::need_more) break;
    if (error) co_return corrupt("the answer is not valid HTTP: " + error.message());
  }
  co_return Status();
}

HttpCall::HttpCall(asio::any_io_executor executor, HttpCallLimits limits)
    : impl_(std::make_unique<Impl>(executor, limits)) {}

HttpCall::~HttpCall() = default;

asio::awaitable<Result<HttpResponse>> HttpCall::open(const Url& url,
                                                     const HttpCallRequest& request) {
  Impl& impl = *impl_;
  const std::string where = to_string(url);
  const TimePoint connect_deadline = deadline_after(impl.limits.connect_timeout);
  const Status connected = co_await impl.stream.connect(url.address, connect_deadline);
  if (!connected.ok()) co_return impl.reason(connected);
  const std::string text = request_text(url, request);
  const Status written = co_await impl.stream.write_all(text, impl.limits.write_timeout);
  // A server may answer and close before it has read a long body: then there is something to read.
  if (!written.ok() && written.code() != Code::kUnavailable) {
    co_return impl.reason(written).with_context(where);
  }
  const TimePoint deadline = deadline_after(impl.limits.head_timeout);
  while (!impl.parser.is_header_done()) {
    const Status advanced = co_await impl.advance(deadline);
    if (!advanced.ok()) co_return advanced.with_context(where);
  }
  HttpResponse response;
  const auto& head = impl.parser.get();
  response.status = head.result_int();
  response.content_type = std::string(head[http::field::content_type]);
  for (const auto& field : head) {
    response.headers.add(std::string(field.name_string()), std::string(field.value()));
  }
  co_return response;
}

asio::awaitable<Result<std::string>> HttpCall::read() {
  Impl& impl = *impl_;
  std::string& body = impl.parser.get().body();
  while (body.empty() && !impl.parser.is_done()) {
    const TimePoint deadline = deadline_after(impl.limits.read_timeout);
    const Status advanced = co_await impl.advance(deadline);
    if (!advanced.ok()) co_return advanced;
  }
  std::string piece = std::move(body);
  body.clear();
  co_return piece;
}

asio::awaitable<Result<std::string>> HttpCall::read_all(std::size_t bytes_max) {
  std::string body;
  for (;;) {
    const Result<std::string> piece = co_await read();
    if (!piece.ok()) co_return piece.status();
    if (piece->empty()) co_return body;
    if (piece->size() > bytes_max - body.size()) {
      co_return corrupt("the answer is longer than " + std::to_string(bytes_max) + " bytes");
    }
    body += *piece;
  }
}

void HttpCall::cancel(Status why) {
  if (!impl_->given_up) impl_->given_up = std::move(why);
  impl_->stream.close();
}

asio::awaitable<Result<HttpResponse>> http_fetch(asio::any_io_executor executor, const Url& url,
                                                 const HttpCallRequest& request,
                                                 HttpCallLimits limits, std::size_t bytes_max) {
  HttpCall call(executor, limits);
  Result<HttpResponse> response = co_await call.open(url, request);
  if (!response.ok()) co_return response;
  Result<std::string> body = co_await call.read_all(bytes_max);
  if (!body.ok()) co_return body.status();
  response->body = std::move(*body);
  co_return response;
}

HttpResponse relayed(const HttpResponse& response) {
  HttpResponse copy;
  copy.status = response.status;
  copy.content_type = response.content_type;
  copy.body = response.body;
  const std::string_view retry_after = response.headers.find("Retry-After");
  if (!retry_after.empty()) copy.headers.add("Retry-After", std::string(retry_after));
  return copy;
}

}  // namespace kvlane
