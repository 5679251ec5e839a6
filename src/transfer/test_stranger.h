// A plain socket that talks to a network under test, byte by byte.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "transfer/message.h"

namespace kvlane::testing {

// Blocking. Of whoever connects; or, with a socket, of whoever has accepted.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    limit();
  }
  struct Accepted {
    int socket;
  };
  explicit Stranger(Accepted accepted) : connected(accepted.socket >= 0), socket_(accepted.socket) {
    limit();
  }
  ~Stranger() { ::close(socket_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void send(ByteView bytes) {
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }
  // The destructor resets the connection instead of ending it.
  void reset_at_the_end() {
    const linger none{1, 0};
    (void)::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  }
  // All that comes until the other side closes.
  std::string receive_all() {
    std::string all;
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::recv(socket_, buffer, sizeof buffer, 0);
      if (got <= 0) {
        closed_in_order = got == 0;
        return all;
      }
      all.append(buffer, static_cast<std::size_t>(got));
    }
  }
  // The next message; empty when none comes.
  Bytes receive_message() {
    Bytes message(kMessageHeaderBytes);
    if (!receive(message, 0)) return {};
    const auto header = parse_message_header(message);
    EXPECT_TRUE(header.ok()) << header.status().message();
    if (!header.ok()) return {};
    message.resize(kMessageHeaderBytes + header->body_bytes);
    return receive(message, kMessageHeaderBytes) ? message : Bytes();
  }

  bool connected = false;
  bool closed_in_order = false;

 private:
  void limit() const {
    const timeval limit{10, 0};
    (void)::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  bool receive(Bytes& into, std::size_t from) const {
    const ssize_t wanted = static_cast<ssize_t>(into.size() - from);
    return wanted == 0 ||
           ::recv(socket_, into.data() + from, into.size() - from, MSG_WAITALL) == wanted;
  }

  const int socket_;
};

// A plain socket that listens on loopback.
class StrangeListener {
 public:
  StrangeListener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    const timeval limit{10, 0};
    (void)::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const bool listens =
        ::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        ::listen(socket_, 8) == 0 &&
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
    EXPECT_TRUE(listens);
    port_ = ntohs(address.sin_port);
  }
  ~StrangeListener() { ::close(socket_); }
  StrangeListener(const StrangeListener&) = delete;
  StrangeListener& operator=(const StrangeListener&) = delete;

  std::uint16_t port() const { return port_; }
  Stranger::Accepted accept() const { return {::accept(socket_, nullptr, nullptr)}; }

 private:
  const int socket_;
  std::uint16_t port_ = 0;
};

}  // namespace kvlane::testing
