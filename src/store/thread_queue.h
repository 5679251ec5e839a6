// Requests of one device that wait for threads, each of which makes one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "store/files.h"

namespace kvlane {

// Thread-safe. The destructor waits for all requests.
class ThreadQueue {
 public:
  // `transfer` does what a request says, and says how it ended.
  using Transfer = std::function<Status(FileRequest&)>;

  ThreadQueue(int depth, Transfer transfer) : transfer_(std::move(transfer)) {
    for (int t = 0; t < std::min(depth, kThreadsMax); ++t) threads_.emplace_back([this] { run(); });
  }
  ~ThreadQueue() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void push(FileRequest request) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(request));
    }
    changed_.notify_one();
  }

 private:
  // Each request that is under way takes a thread: more of them only wait for the device.
  static constexpr int kThreadsMax = 16;

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      FileRequest request = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      const Status status = transfer_(request);
      request.done(status);
      request.done = nullptr;  // what it holds goes before the next one comes
      lock.lock();
    }
  }

  const Transfer transfer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FileRequest> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvlane
