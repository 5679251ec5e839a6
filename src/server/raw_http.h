// For tests: a blocking HTTP client on plain sockets that can misbehave as real clients do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace kvlane {

struct RawResponse {
  int status = 0;    // 0: the connection ended before a whole response
  std::string head;  // status line and fields
  std::string body;  // chunks joined
  bool whole = false;
};

class RawHttp {
 public:
  explicit RawHttp(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    // No test waits longer than this for anything: a hang becomes a failure.
    const timeval patience{10, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawHttp() { close(); }
  RawHttp(const RawHttp&) = delete;
  RawHttp& operator=(const RawHttp&) = delete;

  bool connected() const { return connected_; }

  void send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  // False at the end of the connection.
  bool receive_more() {
    char buffer[4096];
    const ssize_t count = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (count > 0) received_.append(buffer, static_cast<std::size_t>(count));
    return count > 0;
  }
  // Reads until `text` has come, and takes everything up to and including it; empty if it never
  // does.
  std::string take_through(std::string_view text) {
    for (;;) {
      if (const std::size_t at = received_.find(text); at != std::string::npos) {
        return take(at + text.size());
      }
      if (!receive_more()) return {};
    }
  }
  // Everything up to the end of the connection.
  std::string take_rest() {
    while (receive_more()) {
    }
    return std::exchange(received_, {});
  }

  RawResponse read_response() {
    RawResponse response;
    response.head = take_through("\r\n\r\n");
    if (response.head.size() < 12) return response;
    response.status = std::atoi(response.head.c_str() + 9);
    if (response.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      read_chunks(response);
    } else if (const auto at = response.head.find("Content-Length: "); at != std::string::npos) {
      const auto length = static_cast<std::size_t>(std::atoll(response.head.c_str() + at + 16));
      while (received_.size() < length && receive_more()) {
      }
      response.whole = received_.size() >= length;
      response.body = take(std::min(length, received_.size()));
    } else {
      response.body = take_rest();
      response.whole = true;
    }
    return response;
  }

  RawResponse exchange(std::string_view method, std::string_view path, std::string_view body = {},
                       std::string_view further_fields = {}) {
    std::string text(method);
    text += ' ';
    text += path;
    text += " HTTP/1.1\r\nHost: test\r\n";
    text += further_fields;
    if (method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    text += "\r\n";
    text += body;
    send(text);
    return read_response();
  }

 private:
  std::string take(std::size_t count) {
    std::string text = received_.substr(0, count);
    received_.erase(0, count);
    return text;
  }
  void read_chunks(RawResponse& response) {
    for (;;) {
      const std::string line = take_through("\r\n");
      if (line.empty()) return;
      const auto size = static_cast<std::size_t>(std::strtoull(line.c_str(), nullptr, 16));
      while (received_.size() < size + 2) {
        if (!receive_more()) return;
      }
      response.body += take(size);
      take(2);
      if (size == 0) {
        response.whole = true;
        return;
      }
    }
  }

  int socket_;
  bool connected_ = false;
  std::string received_;
};

// One exchange on a connection of its own.
inline RawResponse raw_exchange(std::uint16_t port, std::string_view method, std::string_view path,
                                std::string_view body = {}, std::string_view further_fields = {}) {
  RawHttp client(port);
  return client.exchange(method, path, body, further_fields);
}

}  // namespace kvlane
