// The arithmetic coder, bit by bit.
// SPDX-License-Identifier: Apache-2.0
#include "codec/arithmetic_coder.h"

#include <algorithm>

namespace kvlane {
namespace {

constexpr std::uint32_t kHalf = 1U << 31;
constexpr std::uint32_t kQuarter = 1U << 30;

// What encoder and decoder share: the interval [low, high], both ends inside.
struct Interval {
  std::uint32_t low = 0;
  std::uint32_t high = ~std::uint32_t{0};

  std::uint64_t width() const { return std::uint64_t{high} - low + 1; }

  void take(std::uint32_t first, std::uint32_t end) {
    const std::uint64_t all = width();
    high = low + static_cast<std::uint32_t>((all * end >> 16) - 1);
    low += static_cast<std::uint32_t>(all * first >> 16);
  }
};

class BitWriter {
 public:
  explicit BitWriter(std::span<std::byte> destination) : destination_(destination) {}

  void write(unsigned bit) {
    last_ = last_ << 1 | bit;
    if (++bits_ % 8 == 0) destination_[bits_ / 8 - 1] = static_cast<std::byte>(last_);
  }
  // Fills the last byte with zeros, which the reader sees behind the end anyway.
  std::size_t finish() {
    while (bits_ % 8 != 0) write(0);
    std::size_t bytes = bits_ / 8;
    while (bytes > 0 && destination_[bytes - 1] == std::byte{0}) --bytes;
    return bytes;
  }

 private:
  std::span<std::byte> destination_;
  std::size_t bits_ = 0;
  unsigned last_ = 0;
};

class BitReader {
 public:
  explicit BitReader(ByteView bytes) : bytes_(bytes) {}

  std::uint32_t read() {
    const std::size_t at = bits_ / 8;
    const unsigned shift = 7 - bits_ % 8;
    if (at >= bytes_.size()) return 0;
    ++bits_;
    return std::to_integer<std::uint32_t>(bytes_[at]) >> shift & 1;
  }

 private:
  ByteView bytes_;
  std::size_t bits_ = 0;
};

class Encoder {
 public:
  explicit Encoder(std::span<std::byte> destination) : bits_(destination) {}

  void put(std::uint32_t first, std::uint32_t end) {
    at_.take(first, end);
    while (true) {
      if (at_.high < kHalf) {
        settle(0);
      } else if (at_.low >= kHalf) {
        settle(1);
      } else if (at_.low >= kQuarter && at_.high < kHalf + kQuarter) {
        // Around the middle: the next bit is known only with the one after it.
        ++pending_;
        at_.low -= kQuarter;
        at_.high -= kQuarter;
      } else {
        return;
      }
      at_.low <<= 1;
      at_.high = at_.high << 1 | 1;
    }
  }

  // A point inside the interval whatever follows.
  std::size_t finish() {
    ++pending_;
    settle(at_.low < kQuarter ? 0 : 1);
    return bits_.finish();
  }

 private:
  void settle(unsigned bit) {
    bits_.write(bit);
    for (; pending_ > 0; --pending_) bits_.write(1 - bit);
  }

  Interval at_;
  std::size_t pending_ = 0;
  BitWriter bits_;
};

}  // namespace

std::size_t arithmetic_encode(std::span<const std::uint8_t> symbols,
                              std::span<const std::uint32_t> firsts,
                              std::span<std::byte> destination) {
  Encoder encoder(destination);
  for (const std::uint8_t symbol : symbols) encoder.put(firsts[symbol], firsts[symbol + 1]);
  return encoder.finish();
}

void arithmetic_decode(ByteView coded, std::span<const std::uint32_t> firsts,
                       std::span<std::uint8_t> symbols) {
  BitReader bits(coded);
  Interval at;
  std::uint32_t value = 0;
  for (int i = 0; i < 32; ++i) value = value << 1 | bits.read();
  for (std::uint8_t& symbol : symbols) {
    // The interval always holds `value`, so the point lies below kModelTotal.
    const std::uint64_t offset = std::uint64_t{value} - at.low;
    const auto point = static_cast<std::uint32_t>((((offset + 1) << 16) - 1) / at.width());
    const auto next = std::upper_bound(firsts.begin(), firsts.end() - 1, point);
    symbol = static_cast<std::uint8_t>(next - firsts.begin() - 1);
    at.take(firsts[symbol], firsts[symbol + 1]);
    while (true) {
      if (at.low >= kHalf || at.high < kHalf) {
        // The top bits agree and fall out.
      } else if (at.low >= kQuarter && at.high < kHalf + kQuarter) {
        value -= kQuarter;
        at.low -= kQuarter;
        at.high -= kQuarter;
      } else {
        break;
      }
      value = value << 1 | bits.read();
      at.low <<= 1;
      at.high = at.high << 1 | 1;
    }
  }
}

}  // namespace kvlane
