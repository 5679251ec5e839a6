// Both directions of a link in shared memory, for the network's thread: reading and writing as over
// a socket, and sleeping while there is nothing to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transfer/link_speed.h"
#include "transfer/shared_ring.h"
#include "transfer/shared_segment.h"

namespace kvlane {

// On the loop's thread only. What the system tells of it keeps it alive until close().
class SharedStream : public std::enable_shared_from_this<SharedStream> {
 public:
  enum class Side { kConnector, kAcceptor };
  using Doorbell = boost::asio::local::stream_protocol::socket;
  using Error = boost::system::error_code;
  // Called once, from the loop and never from within read() or write(). `bytes` of what was asked
  // for are done; all of them, or there is an error: `eof`, or `bad_message` when the peer's
  // positions are impossible.
  using Handler = std::function<void(const Error& error, std::size_t bytes)>;

  // Whether the first `bytes` that came will do.
  using Enough = std::function<bool(std::size_t bytes)>;

  SharedStream(boost::asio::io_context& io, Doorbell doorbell,
               std::unique_ptr<SharedSegment> segment, Side side);

  // Listens to the doorbell.
  void start();
  // Fills `into`, which stays where it is until then, or as much of it as is `enough`. One at a
  // time.
  void read(std::span<std::byte> into, Handler handler, Enough enough = nullptr);
  // Writes all of `parts`, likewise.
  void write(std::vector<ByteView> parts, Handler handler);
  // Nothing will be written by the peer any more: reads end with `why` behind its last byte.
  void end_reading(const Error& why);
  // Handlers that were not called are dropped.
  void close();
  // Bytes that the peer has read, and the time in which it left no room.
  LinkProgress progress() const;

 private:
  void schedule();
  void pump();
  bool read_part(std::size_t& budget);
  bool write_part(std::size_t& budget);
  void finish_read(const Error& error);
  void finish_write(const Error& error);
  bool may_sleep();
  void wake_peer();
  void listen();

  boost::asio::io_context& io_;
  Doorbell doorbell_;
  const std::unique_ptr<SharedSegment> segment_;
  RingReader reader_;
  RingWriter writer_;
  bool closed_ = false;
  bool pumping_ = false;
  bool scheduled_ = false;

  std::span<std::byte> into_;
  std::size_t got_ = 0;  // of into_
  Handler on_read_;
  Enough enough_;  // may be empty
  Error ended_;    // set: behind the last byte

  std::vector<ByteView> parts_;
  std::size_t part_ = 0;     // of parts_, that comes next
  std::size_t in_part_ = 0;  // bytes of it that are written
  std::size_t put_ = 0;      // of all parts
  Handler on_write_;
  bool waits_ = false;  // for room
  TimePoint waits_since_{};
  Seconds waited_{0};
};

}  // namespace kvlane
