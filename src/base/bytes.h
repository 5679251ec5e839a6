// Little-endian reading and writing of byte buffers that came from, or go to, somebody else.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvlane {

static_assert(std::endian::native == std::endian::little, "byte formats are little-endian");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

inline ByteView as_byte_view(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline bool all_zero(ByteView bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{}; });
}

// Reads fields one after another. Reading past the end yields zeros and sets failed(): check once,
// after the last field, before any value is used.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  template <std::unsigned_integral T>
  T read() {
    T value = 0;
    if (const ByteView field = read_bytes(sizeof(T)); !failed_) {
      std::memcpy(&value, field.data(), sizeof(T));
    }
    return value;
  }

  // The next `count` bytes, still owned by the buffer; empty when they are not there.
  ByteView read_bytes(std::size_t count) {
    if (failed_ || count > bytes_.size() - at_) {
      failed_ = true;
      return {};
    }
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }

  bool failed() const { return failed_; }
  std::size_t remaining() const { return bytes_.size() - at_; }

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

// Appends fields to a buffer it owns.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void write(T value) {
    write_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void write_bytes(ByteView bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

  const Bytes& bytes() const { return bytes_; }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

}  // namespace kvlane
