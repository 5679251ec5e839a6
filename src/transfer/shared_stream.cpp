// Rings and doorbell as a stream over Asio's loop.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

namespace kvlane {
namespace {

namespace asio = boost::asio;

// Bytes that are shown to the other side, or given back to it, at once: both then work at the same
// time, on bytes that are still in the cache.
constexpr std::size_t kPartBytesMax = std::size_t{64} << 10;
// Then other links and timers have their turn.
constexpr std::size_t kTurnBytesMax = std::size_t{4} << 20;

}  // namespace

SharedStream::SharedStream(asio::io_context& io, Doorbell doorbell,
                           std::unique_ptr<SharedSegment> segment, Side side)
    : io_(io),
      doorbell_(std::move(doorbell)),
      segment_(std::move(segment)),
      reader_(segment_->control(side == Side::kConnector ? 1 : 0),
              segment_->bytes(side == Side::kConnector ? 1 : 0)),
      writer_(segment_->control(side == Side::kConnector ? 0 : 1),
              segment_->bytes(side == Side::kConnector ? 0 : 1)) {}

void SharedStream::start() { listen(); }

void SharedStream::read(std::span<std::byte> into, Handler handler, Enough enough) {
  if (closed_) return;
  into_ = into;
  enough_ = std::move(enough);
  got_ = 0;
  on_read_ = std::move(handler);
  schedule();
}

void SharedStream::write(std::vector<ByteView> parts, Handler handler) {
  if (closed_) return;
  parts_ = std::move(parts);
  part_ = in_part_ = put_ = 0;
  on_write_ = std::move(handler);
  schedule();
}

void SharedStream::end_reading(const Error& why) {
  if (!ended_) ended_ = why;
  schedule();
}

void SharedStream::close() {
  closed_ = true;
  Error ignored;
  doorbell_.close(ignored);
  on_read_ = nullptr;
  on_write_ = nullptr;
  enough_ = nullptr;
}

LinkProgress SharedStream::progress() const {
  const Seconds now = waits_ ? SteadyClock::now() - waits_since_ : Seconds(0);
  return {writer_.read(), waited_ + now};
}

// pump() soon, unless it runs and comes here by itself.
void SharedStream::schedule() {
  if (closed_ || pumping_ || std::exchange(scheduled_, true)) return;
  asio::post(io_, [self = shared_from_this()] {
    self->scheduled_ = false;
    self->pump();
  });
}

void SharedStream::pump() {
  if (closed_ || pumping_) return;
  pumping_ = true;
  std::size_t budget = kTurnBytesMax;
  while (!closed_ && budget > 0) {
    const bool read = read_part(budget);
    const bool wrote = !closed_ && budget > 0 && write_part(budget);
    if (!read && !wrote && (closed_ || may_sleep())) break;
  }
  pumping_ = false;
  if (budget == 0) schedule();
}

// False when there is nothing to do.
bool SharedStream::read_part(std::size_t& budget) {
  if (!on_read_) return false;
  if (got_ < into_.size()) {
    const auto available = reader_.available();
    if (!available) {
      finish_read(boost::system::errc::make_error_code(boost::system::errc::bad_message));
      return true;
    }
    const std::size_t bytes = std::min({*available, into_.size() - got_, kPartBytesMax, budget});
    if (bytes == 0) {
      if (!ended_) return false;
      finish_read(ended_);
      return true;
    }
    reader_.get(into_.subspan(got_, bytes));
    got_ += bytes;
    budget -= bytes;
    if (reader_.writer_sleeps()) wake_peer();
  }
  if (got_ == into_.size() || (enough_ && enough_(got_))) finish_read({});
  return true;
}

void SharedStream::finish_read(const Error& error) {
  const Handler handler = std::exchange(on_read_, nullptr);
  handler(error, got_);
}

bool SharedStream::write_part(std::size_t& budget) {
  if (!on_write_) return false;
  if (part_ < parts_.size()) {
    const auto room = writer_.room();
    if (!room) {
      finish_write(boost::system::errc::make_error_code(boost::system::errc::bad_message));
      return true;
    }
    const ByteView rest = parts_[part_].subspan(in_part_);
    const std::size_t bytes = std::min({*room, rest.size(), kPartBytesMax, budget});
    if (bytes == 0 && !rest.empty()) return false;
    if (std::exchange(waits_, false)) waited_ += SteadyClock::now() - waits_since_;
    writer_.put(rest.first(bytes));
    if (writer_.reader_sleeps()) wake_peer();
    in_part_ += bytes;
    put_ += bytes;
    budget -= bytes;
    if (in_part_ == parts_[part_].size()) {
      ++part_;
      in_part_ = 0;
    }
  }
  if (part_ == parts_.size()) finish_write({});
  return true;
}

void SharedStream::finish_write(const Error& error) {
  const Handler handler = std::exchange(on_write_, nullptr);
  parts_.clear();
  handler(error, put_);
}

// Asks to be woken up for what is awaited, and looks once more.
bool SharedStream::may_sleep() {
  if (on_read_ && !ended_) {
    reader_.will_sleep();
    if (reader_.available() != std::size_t{0}) return false;
  }
  if (on_write_) {
    writer_.will_sleep();
    if (writer_.room() != std::size_t{0}) return false;
    if (!std::exchange(waits_, true)) waits_since_ = SteadyClock::now();
  }
  return true;
}

// A socket that takes no byte has some for its reader; one that broke is noticed by listen().
void SharedStream::wake_peer() {
  const std::byte byte{3};
  (void)::send(doorbell_.native_handle(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void SharedStream::listen() {
  doorbell_.async_wait(Doorbell::wait_read, [self = shared_from_this()](const Error& error) {
    if (error || self->closed_) return;
    std::array<std::byte, 64> bytes{};
    const ssize_t got =
        ::recv(self->doorbell_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    const bool broke = got < 0 && errno != EAGAIN && errno != EINTR;
    if (got == 0 || broke) return self->end_reading(asio::error::eof);
    self->listen();
    self->pump();
  });
}

}  // namespace kvlane
