// Files with threads that read and write: where io_uring is refused.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>

#include "store/posix_files.h"
#include "store/thread_queue.h"

namespace kvlane {
namespace {

Status transfer(FileRequest& request) {
  const auto& file = static_cast<const PosixFile&>(*request.file);
  for (;;) {
    const auto offset = static_cast<off_t>(request.offset);
    const auto [data, bytes] = std::pair(request.memory.data(), request.memory.size());
    const ssize_t moved = request.write ? ::pwrite(file.fd(), data, bytes, offset)
                                        : ::pread(file.fd(), data, bytes, offset);
    Status status;
    if (finished(request, file.path(), moved < 0 ? -errno : moved, status)) return status;
  }
}

class ThreadFiles final : public PosixFiles {
 public:
  explicit ThreadFiles(const FileOptions& options) : PosixFiles(options) {
    for (int device = 0; device < options.devices; ++device) {
      queues_.push_back(std::make_unique<ThreadQueue>(options.depth, transfer));
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
