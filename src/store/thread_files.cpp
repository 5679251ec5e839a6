// Files with threads that read and write: where io_uring is refused.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "store/posix_files.h"

namespace kvlane {
namespace {

// Each request that is under way takes a thread: more of them only wait for the device.
constexpr int kThreadsMax = 16;

// The requests of one device, and who makes them.
class ThreadQueue {
 public:
  explicit ThreadQueue(int threads) {
    for (int t = 0; t < threads; ++t) threads_.emplace_back([this] { run(); });
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
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      FileRequest request = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      const Status status = transfer(request);
      request.done(status);
      request.done = nullptr;  // what it holds goes before the next one comes
      lock.lock();
    }
  }

  static Status transfer(FileRequest& request) {
    const int fd = static_cast<const PosixFile*>(request.file)->fd();
    for (;;) {
      const auto offset = static_cast<off_t>(request.offset);
      const auto [data, bytes] = std::pair(request.memory.data(), request.memory.size());
      const ssize_t moved =
          request.write ? ::pwrite(fd, data, bytes, offset) : ::pread(fd, data, bytes, offset);
      Status status;
      if (finished(request, moved < 0 ? -errno : moved, status)) return status;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FileRequest> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

class ThreadFiles final : public PosixFiles {
 public:
  explicit ThreadFiles(const FileOptions& options) : PosixFiles(options) {
    for (int device = 0; device < options.devices; ++device) {
      queues_.push_back(std::make_unique<ThreadQueue>(std::min(options.depth, kThreadsMax)));
    }
  }

  void submit(FileRequest request) override {
    const int device = static_cast<const PosixFile*>(request.file)->device();
    queues_[static_cast<std::size_t>(device)]->push(std::move(request));
  }

  std::string description() const override { return direct() ? "threads, direct" : "threads"; }

 private:
  std::vector<std::unique_ptr<ThreadQueue>> queues_;
};

}  // namespace

std::unique_ptr<StoreFiles> open_thread_files(const FileOptions& options) {
  return std::make_unique<ThreadFiles>(options);
}

}  // namespace kvlane
