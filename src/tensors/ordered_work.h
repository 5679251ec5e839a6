// Items that are taken in order, worked on side by side, and put down in order.
//
// There are no rounds: while one thread waits for the disk, the others compute. Memory is what each
// worker brings, so it does not depend on how many items there are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Calls for every item i in [0, count), on one of `workers` each:
//   Status take(i)   one at a time, in order: what is read from front to back
//   Status work()    several at a time
//   Status put()     one at a time, in order: what is counted or written from front to back
//   Status store()   several at a time
// One thread a worker, the calling one included. After an error nothing more is taken; errors of
// the first three are reported for the first item that has one.
template <class Worker>
class OrderedWork {
 public:
  OrderedWork(std::uint64_t count, std::span<Worker> workers) : end_(count), workers_(workers) {}

  Status run() {
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < workers_.size(); ++i) {
      try {
        threads.emplace_back([this, i] { work_through(workers_[i]); });
      } catch (const std::system_error&) {
        break;  // the system gives no more threads: those that there are do it
      }
    }
    work_through(workers_.front());
    for (std::thread& thread : threads) thread.join();
    return status_;
  }

 private:
  void work_through(Worker& worker) {
    while (true) {
      std::uint64_t item = 0;
      Status status;
      {
        const std::lock_guard lock(taking_);
        if (failed_ || next_taken_ == end_) return;
        item = next_taken_++;
        status = worker.take(item);
        if (!status.ok()) end_ = next_taken_;
      }
      if (status.ok()) status = worker.work();
      if (!put_in_turn(worker, item, std::move(status))) return;
      if (Status stored = worker.store(); !stored.ok()) return fail(std::move(stored));
    }
  }

  bool put_in_turn(Worker& worker, std::uint64_t item, Status status) {
    std::unique_lock lock(putting_);
    turn_.wait(lock, [&] { return next_put_ == item || failed_; });
    if (failed_) return false;
    if (status.ok()) status = worker.put();
    if (!status.ok()) {
      lock.unlock();
      fail(std::move(status));
      return false;
    }
    ++next_put_;
    lock.unlock();
    turn_.notify_all();
    return true;
  }

  void fail(Status status) {
    {
      const std::lock_guard lock(putting_);
      if (!failed_) status_ = std::move(status);
      failed_ = true;
    }
    turn_.notify_all();
  }

  std::mutex taking_;
  std::uint64_t next_taken_ = 0;
  std::uint64_t end_;

  std::mutex putting_;
  std::condition_variable turn_;
  std::uint64_t next_put_ = 0;
  Status status_;
  std::atomic<bool> failed_ = false;  // written under putting_

  std::span<Worker> workers_;
};

}  // namespace kvlane
