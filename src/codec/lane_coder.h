// An entropy coder whose 16 streams lie side by side in one run of bytes, for vectors.
//
// Each lane is an asymmetric-numeral-system coder (rANS, Duda 2013) with a state of 32 bits, counts
// out of 2^16 and words of 16 bits; all lanes take their words from one sequence, in the order in
// which they need them (interleaving: Giesen 2014), so that no lane has a length of its own
// (spec/slab_cachegen.md, section 4). Against an arithmetic coder with a stream for each channel: a
// decoder reads 16 symbols with a dozen vector operations instead of bits one by one, and a page
// pays at most 4 bytes a lane instead of a length and a rounded byte for every 64 symbols.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"

namespace kvlane {

inline constexpr int kCoderLanes = 16;
// States lie in [kLaneStateLeast, 2^32) between symbols.
inline constexpr std::uint32_t kLaneStateLeast = 1U << 16;
// What every run begins with: a state for each lane.
inline constexpr std::size_t kLaneStateBytes = kCoderLanes * sizeof(std::uint32_t);

// Takes symbols in the reverse of the order in which they will be read, and fills `room` from its
// end.
class LaneEncoder {
 public:
  explicit LaneEncoder(std::span<std::byte> room) : room_(room), left_(room.size()) {
    for (std::uint32_t& state : states_) state = kLaneStateLeast;
  }

  // A symbol that owns [first, first + count) of 2^16; count > 0.
  void put(int lane, std::uint32_t first, std::uint32_t count) {
    std::uint32_t& state = states_[lane];
    if (state >= std::uint64_t{count} << 16) {
      push(static_cast<std::uint16_t>(state));
      state >>= 16;
    }
    state = (state / count << 16) + state % count + first;
  }

  // The bytes used at the end of `room`, 0 when there was too little of it: what is there then is
  // garbage. An even number.
  std::size_t finish() {
    if (full_ || left_ < kLaneStateBytes) return 0;
    left_ -= kLaneStateBytes;
    std::memcpy(room_.data() + left_, states_, kLaneStateBytes);
    return room_.size() - left_;
  }

 private:
  void push(std::uint16_t word) {
    full_ = full_ || left_ < sizeof(word);
    if (full_) return;
    left_ -= sizeof(word);
    std::memcpy(room_.data() + left_, &word, sizeof(word));
  }

  std::span<std::byte> room_;
  std::size_t left_;
  bool full_ = false;
  std::uint32_t states_[kCoderLanes] = {};
};

// Reads any bytes: whatever lies behind their end is zero.
class LaneDecoder {
 public:
  explicit LaneDecoder(ByteView coded) : coded_(coded) {
    const std::size_t there = coded.size() < kLaneStateBytes ? coded.size() : kLaneStateBytes;
    if (there > 0) std::memcpy(states_, coded.data(), there);
    at_ = there;
  }

  // Where the lane's next symbol lies in [0, 2^16).
  std::uint32_t slot(int lane) const { return states_[lane] & 0xFFFF; }

  // Goes past the symbol that owns [first, first + count), which holds slot(lane).
  void take(int lane, std::uint32_t first, std::uint32_t count) {
    std::uint32_t& state = states_[lane];
    state = count * (state >> 16) + (state & 0xFFFF) - first;
    if (state < kLaneStateLeast) state = state << 16 | next();
  }

 private:
  std::uint16_t next() {
    std::uint16_t word = 0;
    if (coded_.size() - at_ < sizeof(word)) return 0;
    std::memcpy(&word, coded_.data() + at_, sizeof(word));
    at_ += sizeof(word);
    return word;
  }

  ByteView coded_;
  std::size_t at_ = 0;
  std::uint32_t states_[kCoderLanes] = {};
};

}  // namespace kvlane
