// Files over io_uring: one ring and one thread for each device, however many requests are under
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

// The requests of one device. Whoever submits puts them into the ring, under the lock; one thread
// waits for them outside of it. The kernel's order of things is made visible by the lock: slots are
// filled and emptied under it.
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
    thread_ = std::thread([this] { run(); });
    return {};
  }

  ~UringQueue() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      if (idle()) wake_to_end();
    }
    thread_.join();
    ::io_uring_queue_exit(&ring_);
  }

  void push(FileRequest request) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(request));
    fill();
  }

 private:
  bool idle() const { return waiting_.empty() && free_.size() == slots_.size(); }

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
      io_uring_cqe* completion = nullptr;
      if (::io_uring_wait_cqe(&ring_, &completion) < 0) continue;  // EINTR
      const std::uint64_t slot = ::io_uring_cqe_get_data64(completion);
      const std::int64_t result = completion->res;
      ::io_uring_cqe_seen(&ring_, completion);
      if (slot == kEnd) return;
      complete(static_cast<std::size_t>(slot), result);
    }
  }

  void complete(std::size_t slot, std::int64_t result) {
    Status status;
    FileRequest request;
    {
      const std::lock_guard lock(mutex_);
      if (!finished(slots_[slot], result, status)) {
        prepare(slot);
        submit();
        return;
      }
      request = std::move(slots_[slot]);
      slots_[slot] = {};
      free_.push_back(slot);
      fill();
    }
    request.done(status);
    const std::lock_guard lock(mutex_);
    if (ending_ && idle()) wake_to_end();
  }

  // A multiple of pages that an entry can say.
  static constexpr std::size_t kBytesMax = std::size_t{1} << 30;

  std::mutex mutex_;
  io_uring ring_{};
  std::vector<FileRequest> slots_;
  std::vector<std::size_t> free_;
  std::deque<FileRequest> waiting_;
  bool ending_ = false;
  std::thread thread_;
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
