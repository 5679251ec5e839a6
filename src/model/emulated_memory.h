// What an emulated device consists of besides kernels: memory that faults when others touch it, and
// lines of work that is put off for as long as possible.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "model/accelerator.h"

namespace kvlane {

// Thread-safe. New memory is poisoned.
class EmulatedMemory {
 public:
  Result<Accelerator::Memory> allocate(std::size_t bytes) {
    if (bytes == 0) return Accelerator::Memory();
    void* const data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return exhausted("no memory for an emulated device");
    std::memset(data, 0xFF, bytes);  // NaN in every float type
    const std::lock_guard lock(mutex_);
    if (at_work_ == 0) ::mprotect(data, bytes, PROT_NONE);
    regions_.emplace(data, bytes);
    return Accelerator::Memory(static_cast<std::byte*>(data), [this](std::byte* at) {
      const std::lock_guard freeing(mutex_);
      const auto region = regions_.find(at);
      ::munmap(at, region->second);
      regions_.erase(region);
    });
  }

  // The device at work: its memory can be touched, for as long as anybody is at it.
  class Open {
   public:
    explicit Open(EmulatedMemory& memory) : memory_(memory) {
      const std::lock_guard lock(memory_.mutex_);
      if (memory_.at_work_++ == 0) memory_.protect(PROT_READ | PROT_WRITE);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open() {
      const std::lock_guard lock(memory_.mutex_);
      if (--memory_.at_work_ == 0) memory_.protect(PROT_NONE);
    }

   private:
    EmulatedMemory& memory_;
  };

 private:
  void protect(int access) const {
    for (const auto& [data, bytes] : regions_) ::mprotect(data, bytes, access);
  }

  std::mutex mutex_;
  std::map<void*, std::size_t> regions_;
  int at_work_ = 0;
};

// Thread-safe: any thread may have the work done.
class EmulatedLine {
 public:
  using Work = std::function<Status()>;

  void give(Work work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
  }
  // How much work was given so far.
  std::size_t given() const {
    const std::lock_guard lock(mutex_);
    return done_ + works_.size();
  }
  // Does the first `place` works, if that has not been done.
  Status pass(std::size_t place) {
    const std::lock_guard lock(mutex_);
    for (; done_ < place; ++done_) {
      const Work work = std::move(works_.front());
      works_.pop_front();
      Status status = work();
      if (error_.ok()) error_ = std::move(status);
    }
    return {};
  }
  // The same, and tells the first error since the last time.
  Status run(std::size_t place) {
    KVLANE_TRY(pass(place));
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, Status());
  }

 private:
  mutable std::mutex mutex_;
  std::deque<Work> works_;
  std::size_t done_ = 0;
  Status error_;
};

}  // namespace kvlane
