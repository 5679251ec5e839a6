// What an emulated device consists of besides kernels: memory that faults when others touch it, and
// lines of work that is put off for as long as possible.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "kvlane/status.h"
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

// Thread-safe: any thread may have the work done, and lines may wait for each other, as long as
// nobody waits for what is behind.
class EmulatedLine {
 public:
  using Work = std::function<Status()>;

  void give(Work work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    ++given_;
  }
  // How much work was given so far.
  std::size_t given() const {
    const std::lock_guard lock(mutex_);
    return given_;
  }
  // Does the first `place` works, if that has not been done. One thread works at a time; work may
  // wait for another line meanwhile, and that for what is done here already.
  void pass(std::size_t place) {
    std::unique_lock lock(mutex_);
    while (done_ < place) {
      if (working_) {
        changed_.wait(lock);
        continue;
      }
      working_ = true;
      const Work work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      Status status = work();
      lock.lock();
      if (error_.ok()) error_ = std::move(status);
      working_ = false;
      ++done_;
      changed_.notify_all();
    }
  }
  // Of what was given nothing more is done.
  void drop() {
    const std::lock_guard lock(mutex_);
    works_.clear();
    done_ = given_;
  }
  // The same as pass(), and tells the first error since the last time.
  Status run(std::size_t place) {
    pass(place);
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, Status());
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  std::size_t given_ = 0;
  std::size_t done_ = 0;
  bool working_ = false;
  Status error_;
};

}  // namespace kvlane
