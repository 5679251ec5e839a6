// One direction of shared memory, a ring of bytes: spec/transfer.md section 11.
//
// The other side may write anything at any time, so what is read here is read once and checked; a
// side knows from memory of its own where it stands itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"

namespace kvlane {

// As it lies in the segment, a cache line for each side's position. All accesses are sequentially
// consistent: who moves a position and then finds nobody waiting must not be seen by one who says
// that he waits and then finds the position unmoved.
struct RingControl {
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> writer_waits;
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> reader_waits;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(offsetof(RingControl, writer_waits) == 8 && offsetof(RingControl, read) == 64 &&
              offsetof(RingControl, reader_waits) == 72 && sizeof(RingControl) == 128);

// The side that fills the ring. One thread. The memory outlives it; its size is a power of two.
class RingWriter {
 public:
  RingWriter(RingControl& control, std::span<std::byte> bytes) : control_(control), bytes_(bytes) {}

  // Bytes that fit now; empty when the reader's position is impossible.
  std::optional<std::size_t> room();
  // Copies `part`, which fits, and shows it to the reader.
  void put(ByteView part);
  // Whether the reader sleeps; then it is to be woken up, and this is not true again until it says
  // so again.
  bool reader_sleeps();
  // From here on the reader is asked to wake us up. Look at room() once more before you sleep.
  void will_sleep() { control_.writer_waits.store(1); }
  // Bytes that the reader is known to have read, by the last room().
  std::uint64_t read() const { return read_; }

 private:
  RingControl& control_;
  const std::span<std::byte> bytes_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

// The side that empties it, likewise.
class RingReader {
 public:
  RingReader(RingControl& control, std::span<const std::byte> bytes)
      : control_(control), bytes_(bytes) {}

  // Bytes that are there; empty when the writer's position is impossible.
  std::optional<std::size_t> available();
  // Copies the next bytes, which are there, and gives their room back.
  void get(std::span<std::byte> part);
  // Whether the writer sleeps and has half of the ring to itself: then it is to be woken up.
  bool writer_sleeps();
  void will_sleep() { control_.reader_waits.store(1); }

 private:
  RingControl& control_;
  const std::span<const std::byte> bytes_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace kvlane
