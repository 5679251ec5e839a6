// What both backends of files share: all but the queues.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <utility>

#include "base/descriptor.h"
#include "store/files.h"

namespace kvlane {

class PosixFile final : public StoreFile {
 public:
  PosixFile(Descriptor fd, std::filesystem::path path, int device)
      : fd_(std::move(fd)), path_(std::move(path)), device_(device) {}

  int fd() const { return fd_.get(); }
  const std::filesystem::path& path() const { return path_; }
  int device() const { return device_; }

 private:
  Descriptor fd_;
  std::filesystem::path path_;
  int device_;
};

// Opens, syncs, lists; submit() is for those that derive. Their files are PosixFiles.
class PosixFiles : public StoreFiles {
 public:
  explicit PosixFiles(const FileOptions& options)
      : devices_(options.devices), direct_(options.direct) {}

  Result<std::unique_ptr<StoreFile>> open(const std::filesystem::path& path, FileAccess access,
                                          int device) override;
  Status sync(StoreFile& file) override;
  Status give_back(StoreFile& file, std::uint64_t offset, std::uint64_t bytes) override;
  Result<std::uint64_t> bytes(StoreFile& file) override;
  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override;
  Status remove(const std::filesystem::path& path) override;
  Status sync_directory(const std::filesystem::path& directory) override;

 protected:
  bool direct() const { return direct_; }

 private:
  int devices_;
  std::atomic<bool> direct_;  // false once a file system has refused O_DIRECT
};

// What became of a call on the file at `path`: how many bytes, or minus errno. False: go on with
// what is left of `request`, else `status` says how it ended.
bool finished(FileRequest& request, const std::filesystem::path& path, std::int64_t result,
              Status& status);

// The backends. kUnsupported from the first where the system has no io_uring for us.
Result<std::unique_ptr<StoreFiles>> open_uring_files(const FileOptions& options);
std::unique_ptr<StoreFiles> open_thread_files(const FileOptions& options);

}  // namespace kvlane
