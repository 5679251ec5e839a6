// Positions and copies of a ring in shared memory.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_ring.h"

#include <algorithm>
#include <cstring>

namespace kvlane {
namespace {

// ThreadSanitizer tells memory by its address. Where both sides are in one process, as in tests,
// the ring has two, and what one side did before it moved a position would seem unordered to what
// the other side does when it has seen that.
void tell_sanitizer() {
#ifdef __SANITIZE_THREAD__
  static std::atomic<int> order = 0;
  order.fetch_add(1);
#endif
}

}  // namespace

std::optional<std::size_t> RingWriter::room() {
  const std::uint64_t read = control_.read.load();
  // Between what it was and what there is: also when one of them has passed the end of 64 bits.
  if (read - read_ > written_ - read_) return std::nullopt;
  tell_sanitizer();
  read_ = read;
  return bytes_.size() - static_cast<std::size_t>(written_ - read);
}

void RingWriter::put(ByteView part) {
  const std::size_t at = written_ & (bytes_.size() - 1);
  const std::size_t first = std::min(part.size(), bytes_.size() - at);
  std::memcpy(bytes_.data() + at, part.data(), first);
  if (first < part.size()) {
    std::memcpy(bytes_.data(), part.data() + first, part.size() - first);
  }
  written_ += part.size();
  tell_sanitizer();
  control_.written.store(written_);
}

bool RingWriter::reader_sleeps() {
  if (control_.reader_waits.load() == 0) return false;
  control_.reader_waits.store(0);
  return true;
}

std::optional<std::size_t> RingReader::available() {
  const std::uint64_t written = control_.written.load();
  if (written - read_ > bytes_.size() || written - read_ < written_ - read_) return std::nullopt;
  tell_sanitizer();
  written_ = written;
  return static_cast<std::size_t>(written - read_);
}

void RingReader::get(std::span<std::byte> part) {
  const std::size_t at = read_ & (bytes_.size() - 1);
  const std::size_t first = std::min(part.size(), bytes_.size() - at);
  std::memcpy(part.data(), bytes_.data() + at, first);
  if (first < part.size()) {
    std::memcpy(part.data() + first, bytes_.data(), part.size() - first);
  }
  read_ += part.size();
  tell_sanitizer();
  control_.read.store(read_);
}

bool RingReader::writer_sleeps() {
  const auto free = bytes_.size() - static_cast<std::size_t>(written_ - read_);
  if (control_.writer_waits.load() == 0 || free < bytes_.size() / 2) return false;
  control_.writer_waits.store(0);
  return true;
}

}  // namespace kvlane
