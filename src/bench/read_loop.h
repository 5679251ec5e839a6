// Keeps reads under way and hands over what has come.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "cpu/memory.h"
#include "kvlane/status.h"

namespace kvlane {

// Memory of reads that is used over and over. Not movable: reads under way point to it.
class ReadLoop {
 public:
  using Done = std::function<void(const Status&)>;
  // Begins to read item `index` into `memory`; calls `done` once, on any thread.
  using Begin = std::function<void(std::size_t index, std::span<std::byte> memory, Done done)>;
  // What was read. `slot` counts memories from 0; called on several threads, of a slot on one.
  using Take = std::function<Status(std::size_t index, ByteView memory, std::size_t slot)>;

  // `slots` reads of at most `bytes` bytes each; `bytes` is a multiple of pages.
  Status reserve(std::size_t slots, std::size_t bytes);
  std::size_t slots() const { return slots_.size(); }

  // Reads all of `order`: as many as there are slots are under way or being taken; `threads`
  // threads take. The first error; what is under way then ends before it returns.
  Status run(std::span<const std::size_t> order, int threads, const Begin& begin, const Take& take);

 private:
  struct Slot {
    PageBuffer memory;
    std::size_t index = 0;
  };

  void begin(std::unique_lock<std::mutex>& lock, std::size_t slot);
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::size_t bytes_ = 0;
  // Of the run under way:
  std::span<const std::size_t> order_;
  const Begin* begin_ = nullptr;
  const Take* take_ = nullptr;
  std::size_t next_ = 0;
  std::size_t busy_ = 0;  // slots that are read into or taken from
  std::deque<std::size_t> ready_;
  Status status_;
};

}  // namespace kvlane
