// A pace for files: completions wait for their time in a queue of one thread.
// SPDX-License-Identifier: Apache-2.0
#include "store/paced_files.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace kvlane {
namespace {

// Remembers its device, which the files below do not tell.
class PacedFile final : public StoreFile {
 public:
  PacedFile(std::unique_ptr<StoreFile> inner, int device)
      : inner_(std::move(inner)), device_(device) {}
  StoreFile& inner() const { return *inner_; }
  int device() const { return device_; }

 private:
  std::unique_ptr<StoreFile> inner_;
  int device_;
};

StoreFile& unpaced(StoreFile& file) { return static_cast<PacedFile&>(file).inner(); }

class PacedFiles final : public StoreFiles {
 public:
  PacedFiles(std::unique_ptr<StoreFiles> files, const DevicePace& pace, int devices)
      : pace_(pace),
        free_at_(static_cast<std::size_t>(devices), SteadyClock::now()),
        files_(std::move(files)),
        thread_([this] { run(); }) {}

  ~PacedFiles() override {
    files_.reset();  // all requests have come to the queue
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Result<std::unique_ptr<StoreFile>> open(const std::filesystem::path& path, FileAccess access,
                                          int device) override {
    KVLANE_ASSIGN(auto file, files_->open(path, access, device));
    return std::unique_ptr<StoreFile>(std::make_unique<PacedFile>(std::move(file), device));
  }

  void submit(FileRequest request) override {
    const TimePoint due = due_time(request);
    request.file = &unpaced(*request.file);
    request.done = [this, due, done = std::move(request.done)](const Status& status) {
      {
        const std::lock_guard lock(mutex_);
        waiting_.emplace(due, [done, status] { done(status); });
      }
      changed_.notify_one();
    };
    files_->submit(std::move(request));
  }

  Status sync(StoreFile& file) override { return files_->sync(unpaced(file)); }
  Status give_back(StoreFile& file, std::uint64_t offset, std::uint64_t bytes) override {
    return files_->give_back(unpaced(file), offset, bytes);
  }
  Result<std::uint64_t> bytes(StoreFile& file) override { return files_->bytes(unpaced(file)); }
  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override {
    return files_->list(directory);
  }
  Status remove(const std::filesystem::path& path) override { return files_->remove(path); }
  Status sync_directory(const std::filesystem::path& directory) override {
    return files_->sync_directory(directory);
  }
  std::string description() const override { return files_->description() + ", paced"; }

 private:
  // When a device of this pace would have done with the request; it then is free for the next.
  TimePoint due_time(const FileRequest& request) {
    const double rate = request.write ? pace_.write_bytes_per_second : pace_.read_bytes_per_second;
    const double seconds = rate > 0 ? static_cast<double>(request.memory.size()) / rate : 0;
    const auto device = static_cast<std::size_t>(static_cast<PacedFile&>(*request.file).device());
    const std::lock_guard lock(mutex_);
    TimePoint& free_at = free_at_[device];
    free_at = std::max(free_at, SteadyClock::now()) +
              std::chrono::duration_cast<SteadyClock::duration>(Seconds(seconds));
    return free_at + std::chrono::duration_cast<SteadyClock::duration>(pace_.latency);
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (waiting_.empty()) {
        if (ending_) return;
        changed_.wait(lock);
      } else if (const TimePoint due = waiting_.begin()->first; SteadyClock::now() < due) {
        changed_.wait_until(lock, due);
      } else {
        const auto complete = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        lock.unlock();
        complete();
        lock.lock();
      }
    }
  }

  DevicePace pace_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TimePoint> free_at_;  // of each device
  std::multimap<TimePoint, std::function<void()>> waiting_;
  bool ending_ = false;
  std::unique_ptr<StoreFiles> files_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StoreFiles> paced_files(std::unique_ptr<StoreFiles> files, const DevicePace& pace,
                                        int devices) {
  return std::make_unique<PacedFiles>(std::move(files), pace, devices);
}

}  // namespace kvlane
