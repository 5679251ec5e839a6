// Files over io_uring: one ring and a few threads for each device, however many requests are under
// way.
// SPDX-License-Identifier: Apache-2.0
#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "store/posix_files.h"

namespace kvlane {
namespace {

// Of the request that ends the thread: no slot has this number.
constexpr std::uint64_t kEnd = ~std::uint64_t{0};

// Who asked checks on these threads what has come, which takes a good part of the time that a fast
// device needs for the next: one alone would let it wait.
constexpr int kThreads = 2;

// The requests of one device. Whoever submits puts them into the ring, under the lock; threads take
// turns at waiting for them, so that there is one while others tell who asked. The kernel's order
// of things is made visible by the lock: slots are filled and emptied under it.
class UringQueue {
 public:
  explicit UringQueue(int depth) : slots_(static_cast<std::size_t>(depth)) {
    for (std::size_t slot = slots_.size(); slot > 0; --slot) free_.push_back(slot - 1);
  }

  Status start() {
    // One entry more: kEnd comes when all slots may be in use.
    const int error = ::io_uring_queue_init(static_cast<unsigned>(slots_.size()) + 1, &ring_, 0);
    if (error < 0) {
      return unsupported(std::string("the system refuses io_uring: ") + std::strerror(-error));
    }
    for (int t = 0; t < kThreads; ++t) threads_.emplace_back([this] { run(); });
    return {};
  }

  ~UringQueue() {
    if (threads_.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      if (idle()) wake_to_end();
    }
    for (std::thread& thread : threads_) thread.join();
    ::io_uring_queue_exit(&ring_);
  }

  void push(FileRequest request) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(request));
    fill();
  }

 private:
  bool idle() const { return waiting_.empty() && free_.size() == slots_.size() && telling_ == 0; }

  // Under the lock, like all that follow up to run().
  void fill() {
    bool any = false;
    while (!waiting_.empty() && !free_.empty()) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = std::move(waiting_.front());
      waiting_.pop_front();
      prepare(slot);
      any = true;
    }
    if (any) submit();
  }

  void prepare(std::size_t slot) {
    const FileRequest& request = slots_[slot];
    const int fd = static_cast<const PosixFile*>(request.file)->fd();
    const auto bytes =
        static_cast<unsigned>(std::min<std::size_t>(request.memory.size(), kBytesMax));
    // There is one: never more than depth + 1 entries are under way.
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (request.write) {
      ::io_uring_prep_write(entry, fd, request.memory.data(), bytes, request.offset);
    } else {
      ::io_uring_prep_read(entry, fd, request.memory.data(), bytes, request.offset);
    }
    ::io_uring_sqe_set_data64(entry, slot);
  }

  void wake_to_end() {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_nop(entry);
    ::io_uring_sqe_set_data64(entry, kEnd);
    submit();
  }

  // The kernel may be short of memory for a moment; what was not taken is taken the next time.
  void submit() {
    for (;;) {
      const int taken = ::io_uring_submit(&ring_);
      if (taken >= 0 && ::io_uring_sq_ready(&ring_) == 0) return;
      if (taken < 0 && taken != -EAGAIN && taken != -EINTR && taken != -EBUSY) return;
      std::this_thread::yield();
    }
  }

  void run() {
    for (;;) {
      FileRequest request;
      Status status;
      {
        const std::lock_guard turn(turn_);
        if (ended_) return;
        io_uring_cqe* completion = nullptr;
        if (::io_uring_wait_cqe(&ring_, &completion) < 0) continue;  // EINTR
        const std::uint64_t slot = ::io_uring_cqe_get_data64(completion);
        const std::int64_t result = completion->res;
        ::io_uring_cqe_seen(&ring_, completion);
        ended_ = slot == kEnd;
        if (ended_) return;
        if (!complete(static_cast<std::size_t>(slot), result, request, status)) continue;
      }
      request.done(status);
      request.done = nullptr;  // what it holds goes before anybody thinks that all is done
      const std::lock_guard lock(mutex_);
      telling_ -= 1;
      if (ending_ && idle()) wake_to_end();
    }
  }

  // Hands the device its next request before anybody is told of this one. False: it goes on.
  bool complete(std::size_t slot, std::int64_t result, FileRequest& request, Status& status) {
    const std::lock_guard lock(mutex_);
    const auto& path = static_cast<const PosixFile*>(slots_[slot].file)->path();
    if (!finished(slots_[slot], path, result, status)) {
      prepare(slot);
      submit();
      return false;
    }
    request = std::move(slots_[slot]);
    slots_[slot] = {};
    free_.push_back(slot);
    telling_ += 1;
    fill();
    return true;
  }

  // A multiple of pages that an entry can say.
  static constexpr std::size_t kBytesMax = std::size_t{1} << 30;

  std::mutex mutex_;
  io_uring ring_{};
  std::vector<FileRequest> slots_;
  std::vector<std::size_t> free_;
  std::deque<FileRequest> waiting_;
  std::size_t telling_ = 0;  // requests whose done() is being called
  bool ending_ = false;
  std::mutex turn_;     // of the thread that waits for the ring; before mutex_
  bool ended_ = false;  // under `turn_`
  std::vector<std::thread> threads_;
};

class UringFiles final : public PosixFiles {
 public:
  explicit UringFiles(const FileOptions& options) : PosixFiles(options), options_(options) {}

  Status start() {
    for (int device = 0; device < options_.devices; ++device) {
      queues_.push_back(std::make_unique<UringQueue>(options_.depth));
      KVLANE_TRY(queues_.back()->start());
    }
    return {};
  }

  void submit(FileRequest request) override {
    const int device = static_cast<const PosixFile*>(request.file)->device();
    queues_[static_cast<std::size_t>(device)]->push(std::move(request));
  }

  std::string description() const override { return direct() ? "io_uring, direct" : "io_uring"; }

 private:
  FileOptions options_;
  std::vector<std::unique_ptr<UringQueue>> queues_;
};

}  // namespace

Result<std::unique_ptr<StoreFiles>> open_uring_files(const FileOptions& options) {
  auto files = std::make_unique<UringFiles>(options);
  KVLANE_TRY(files->start());
  return std::unique_ptr<StoreFiles>(std::move(files));
}

}  // namespace kvlane
