// The fields of letters between ranks, one after another: spec/ranks.md section 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "format/block_name.h"
#include "ranks/letter.h"

namespace kvlane {

// Upper limits of what is read, so that memory follows from the letter's length.
inline constexpr std::uint32_t kLetterTextBytesMax = 1024;
inline constexpr std::uint32_t kRanksMax = 4096;
inline constexpr std::uint32_t kIntMax = std::numeric_limits<std::int32_t>::max();

class LetterWriter {
 public:
  LetterWriter() = default;  // of what a REPLY brings
  explicit LetterWriter(LetterKind kind) { bytes_.write(static_cast<std::uint8_t>(kind)); }

  void byte(std::uint8_t value) { bytes_.write(value); }
  void integer(std::int32_t value) { bytes_.write(static_cast<std::uint32_t>(value)); }
  void number(std::uint64_t value) { bytes_.write(value); }
  void real(double value) { bytes_.write(std::bit_cast<std::uint64_t>(value)); }
  void raw(ByteView value) { bytes_.write_bytes(value); }
  void text(std::string_view value) {
    value = value.substr(0, kLetterTextBytesMax);
    integer(static_cast<std::int32_t>(value.size()));
    raw(as_byte_view(value));
  }
  void list(std::span<const std::int32_t> values) {
    integer(static_cast<std::int32_t>(values.size()));
    raw(std::as_bytes(values));
  }
  void name(const BlockName& value) { raw(value); }
  void names(std::span<const BlockName> values) {
    integer(static_cast<std::int32_t>(values.size()));
    for (const BlockName& value : values) name(value);
  }
  void codebooks(std::span<const Codebook> values) {
    integer(static_cast<std::int32_t>(values.size()));
    for (const Codebook& value : values) raw(std::as_bytes(std::span(value.exponents)));
  }
  void address(const Address& value) {
    text(value.host);
    integer(value.port);
  }
  void status(const Status& value) {
    byte(static_cast<std::uint8_t>(value.code()));
    text(value.message());
  }
  void place(const BlockPlace& value) {
    byte(static_cast<std::uint8_t>(value.memory));
    integer(value.block);
  }
  Bytes take() { return bytes_.take(); }

 private:
  ByteWriter bytes_;
};

// The fields of a letter behind its kind. What is out of range reads as zero and fails.
class LetterReader {
 public:
  explicit LetterReader(ByteView reply) : bytes_(reply) {}
  LetterReader(ByteView letter, LetterKind kind) : bytes_(letter) {
    in_range(bytes_.read<std::uint8_t>() == static_cast<std::uint8_t>(kind));
  }

  std::uint8_t byte() { return bytes_.read<std::uint8_t>(); }
  bool flag() {
    const std::uint8_t value = byte();
    in_range(value <= 1);
    return value == 1;
  }
  int integer(std::uint32_t max = kIntMax) {
    const auto value = bytes_.read<std::uint32_t>();
    return static_cast<int>(in_range(value <= max) ? value : 0);
  }
  std::uint64_t number() { return bytes_.read<std::uint64_t>(); }
  double real() { return std::bit_cast<double>(bytes_.read<std::uint64_t>()); }
  std::string text() {
    const int size = integer(kLetterTextBytesMax);
    return std::string(as_text(bytes_.read_bytes(size)));
  }
  std::vector<std::int32_t> list() {
    const std::size_t size = integer();
    if (!in_range(size <= bytes_.remaining() / sizeof(std::int32_t))) return {};
    std::vector<std::int32_t> values(size);
    const ByteView bytes = bytes_.read_bytes(size * sizeof(std::int32_t));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  BlockName name() {
    BlockName value{};
    const ByteView bytes = bytes_.read_bytes(value.size());
    if (bytes.size() == value.size()) std::memcpy(value.data(), bytes.data(), bytes.size());
    return value;
  }
  std::vector<BlockName> names() {
    const std::size_t size = integer();
    if (!in_range(size <= bytes_.remaining() / sizeof(BlockName))) return {};
    std::vector<BlockName> values(size);
    for (BlockName& value : values) value = name();
    return values;
  }
  std::vector<Codebook> codebooks() {
    const std::size_t size = integer();
    if (!in_range(size <= bytes_.remaining() / Codebook::kExponentsMax)) return {};
    std::vector<Codebook> values(size);
    for (auto& [exponents] : values) {
      for (std::uint8_t& exponent : exponents) exponent = byte();
      in_range(std::ranges::adjacent_find(exponents, std::greater_equal()) == exponents.end());
    }
    return values;
  }
  Address address() {
    std::string host = text();
    return {std::move(host), static_cast<std::uint16_t>(integer(65535))};
  }
  Status status() {
    const std::uint8_t code = byte();
    std::string message = text();
    if (code == 0 || !in_range(code <= static_cast<int>(Code::kInternal))) return {};
    return {Code{code}, std::move(message)};
  }
  BlockPlace place() {
    const std::uint8_t memory = byte();
    const int block = integer();
    if (!in_range(memory <= static_cast<int>(RankMemory::kArena))) return {};
    return {RankMemory{memory}, block};
  }
  ByteView rest() { return bytes_.read_bytes(bytes_.remaining()); }
  ByteView raw(std::size_t bytes) { return bytes_.read_bytes(bytes); }
  bool in_range(bool fine) {
    failed_ |= !fine;
    return fine;
  }

  bool failed() const { return failed_ || bytes_.failed(); }
  // Of a letter that was read whole.
  template <class T>
  Result<T> end(T value) const {
    if (failed() || bytes_.remaining() > 0) {
      return corrupt("a letter between ranks is malformed");
    }
    return value;
  }

 private:
  ByteReader bytes_;
  bool failed_ = false;
};

}  // namespace kvlane
