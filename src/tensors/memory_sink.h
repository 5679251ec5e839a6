// Where tests and fuzz targets write files to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/streams.h"

namespace kvlane {

class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(bool in_order = false) : sequential_(in_order) {}

  bool sequential() const override { return sequential_; }

  Status write_at(std::uint64_t offset, ByteView bytes) override {
    const std::lock_guard lock(mutex_);
    if (sequential_ && offset != bytes_.size()) return internal_error("written out of order");
    if (room && offset + bytes.size() > *room) return exhausted("the disk is full");
    bytes_.resize(std::max(bytes_.size(), offset + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }

  const Bytes& bytes() const { return bytes_; }

  std::optional<std::size_t> room;  // of a disk that becomes full

 private:
  bool sequential_;
  std::mutex mutex_;
  Bytes bytes_;
};

// Bytes that come as through a pipe: nobody knows how many.
class PipeSource final : public ByteSource {
 public:
  explicit PipeSource(ByteView bytes) : bytes_(bytes) {}
  std::optional<std::uint64_t> bytes() const override { return std::nullopt; }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> destination) override {
    if (offset != at_) return internal_error("read out of order");
    const std::size_t there = std::min<std::size_t>(destination.size(), bytes_.size() - at_);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), there, destination.begin());
    at_ += there;
    return there;
  }

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
};

}  // namespace kvlane
