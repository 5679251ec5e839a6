// Writing responses: heads by hand, bodies whole or in chunks.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>

#include "server/api_error.h"
#include "server/coroutine.h"
#include "server/http_server.h"
#include "server/openai_response.h"
#include "server/tcp_stream.h"

namespace kvlane {

namespace {

// What a server that stops still has to say must be taken in so much time.
constexpr Seconds kCutShortTime{1};

std::string chunk_size_line(std::size_t bytes) {
  std::array<char, 2 * sizeof(bytes)> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bytes, 16).ptr;
  return std::string(digits.data(), end) + "\r\n";
}

}  // namespace

HttpReply::HttpReply(TcpStream& stream, const HttpRequest& request, bool chunked, bool keep_alive,
                     Seconds write_timeout)
    : stream_(stream),
      request_(request),
      chunked_(chunked),
      keep_alive_(keep_alive),
      write_timeout_(write_timeout) {}

std::string HttpReply::head(const HttpResponse& response, std::string_view framing) const {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " ";
  text += http_reason(response.status);
  text += "\r\nContent-Type: " + response.content_type + "\r\n";
  text += framing;
  text += "X-Request-Id: " + request_.id + "\r\n";
  for (const auto& field : response.headers.fields()) {
    text += field.name + ": " + field.value + "\r\n";
  }
  text += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

asio::awaitable<Status> HttpReply::write_all(std::string_view bytes) {
  writing_ = true;
  const Status written = co_await stream_.write_all(bytes, write_timeout_);
  writing_ = !written.ok();
  co_return written;
}

asio::awaitable<Status> HttpReply::send(const HttpResponse& response) {
  if (started_) co_return internal_error("a second response to one request");
  started_ = true;
  status_ = response.status;
  const std::string length = std::to_string(response.body.size());
  std::string text = head(response, "Content-Length: " + length + "\r\n");
  if (request_.method != "HEAD") text += response.body;
  const Status written = co_await write_all(text);
  finished_ = written.ok();
  co_return written;
}

asio::awaitable<Status> HttpReply::start_stream(const HttpResponse& response) {
  if (started_) co_return internal_error("a second response to one request");
  started_ = true;
  status_ = response.status;
  events_ = response.content_type == kEventStreamType;
  // Without chunks (HTTP/1.0) the end of the connection is the end of the body.
  if (!chunked_) keep_alive_ = false;
  std::string text = head(response, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  if (chunked_ && !response.body.empty()) {
    text += chunk_size_line(response.body.size()) + response.body + "\r\n";
  } else {
    text += response.body;
  }
  const Status written = co_await write_all(text);
  co_return written;
}

asio::awaitable<Status> HttpReply::write(std::string_view piece) {
  if (!started_ || finished_) co_return internal_error("a piece of body outside of a stream");
  if (piece.empty()) co_return Status();  // an empty chunk would end the body
  told_all_ = events_ && piece.ends_with(kDoneEvent);
  std::string text;
  if (chunked_) {
    text = chunk_size_line(piece.size());
    text += piece;
    text += "\r\n";
    piece = text;
  }
  const Status written = co_await write_all(piece);
  co_return written;
}

asio::awaitable<Status> HttpReply::finish() {
  if (!started_ || finished_) co_return internal_error("the end of a stream that is not open");
  Status written;
  const std::string_view last_chunk = "0\r\n\r\n";
  if (chunked_) written = co_await write_all(last_chunk);
  finished_ = written.ok();
  co_return written;
}

asio::awaitable<void> HttpReply::cut_short(const ApiError& error) {
  if (finished_ || writing_ || (started_ && !events_)) co_return;
  keep_alive_ = false;
  write_timeout_ = kCutShortTime;
  if (!started_) {
    const HttpResponse response = to_response(error);
    co_await send(response);
    co_return;
  }
  Status written;
  if (!told_all_) {
    const std::string event = sse_event(to_json_text(error));
    written = co_await write(event);
  }
  if (written.ok()) co_await finish();
}

}  // namespace kvlane
