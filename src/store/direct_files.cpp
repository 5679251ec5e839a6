// Each file is open twice: below, and for direct reads, which threads make.
// SPDX-License-Identifier: Apache-2.0
#include "store/direct_files.h"

#include <atomic>
#include <utility>
#include <vector>

#include "store/posix_files.h"
#include "store/thread_queue.h"

namespace kvlane {
namespace {

class DirectFile final : public StoreFile {
 public:
  DirectFile(std::unique_ptr<StoreFile> inner, std::unique_ptr<gpu::DirectStorage::File> direct,
             int device)
      : inner_(std::move(inner)), direct_(std::move(direct)), device_(device) {}

  StoreFile& inner() const { return *inner_; }
  const gpu::DirectStorage::File& direct() const { return *direct_; }
  int device() const { return device_; }
  bool reads_directly() const { return direct_ != nullptr && !refused_; }
  void refuse() { refused_ = true; }

 private:
  std::unique_ptr<StoreFile> inner_;
  std::unique_ptr<gpu::DirectStorage::File> direct_;
  int device_;
  std::atomic<bool> refused_ = false;
};

DirectFile& file_of(StoreFile& file) { return static_cast<DirectFile&>(file); }
StoreFile& inner(StoreFile& file) { return file_of(file).inner(); }

class DirectFiles final : public StoreFiles {
 public:
  DirectFiles(std::unique_ptr<StoreFiles> files, std::shared_ptr<gpu::DirectStorage> storage,
              const FileOptions& options)
      : storage_(std::move(storage)), files_(std::move(files)) {
    for (int device = 0; device < options.devices; ++device) {
      queues_.push_back(std::make_unique<ThreadQueue>(
          options.depth, [this](FileRequest& request) { return read(request); }));
    }
  }

  Result<std::unique_ptr<StoreFile>> open(const std::filesystem::path& path, FileAccess access,
                                          int device) override {
    KVLANE_ASSIGN(auto file, files_->open(path, access, device));
    // What cannot be read directly is read through the host.
    auto direct = storage_->open_file(path);
    return std::unique_ptr<StoreFile>(std::make_unique<DirectFile>(
        std::move(file), direct.ok() ? std::move(*direct) : nullptr, device));
  }

  void submit(FileRequest request) override {
    DirectFile& file = file_of(*request.file);
    if (!request.to_device) {
      request.file = &file.inner();
      files_->submit(std::move(request));
    } else if (request.write || !file.reads_directly()) {
      request.done(invalid_argument("a file that is not read to memory of a device"));
    } else {
      queues_[static_cast<std::size_t>(file.device())]->push(std::move(request));
    }
  }

  Status sync(StoreFile& file) override { return files_->sync(inner(file)); }
  Status give_back(StoreFile& file, std::uint64_t offset, std::uint64_t bytes) override {
    return files_->give_back(inner(file), offset, bytes);
  }
  Result<std::uint64_t> bytes(StoreFile& file) override { return files_->bytes(inner(file)); }
  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override {
    return files_->list(directory);
  }
  Status remove(const std::filesystem::path& path) override { return files_->remove(path); }
  Status sync_directory(const std::filesystem::path& directory) override {
    return files_->sync_directory(directory);
  }
  gpu::DirectStorage* direct_storage() const override { return storage_.get(); }
  bool reads_to_device(const StoreFile& file) const override {
    return static_cast<const DirectFile&>(file).reads_directly();
  }
  std::string description() const override {
    return files_->description() + ", to devices by " + storage_->description();
  }

 private:
  Status read(FileRequest& request) {
    DirectFile& file = file_of(*request.file);
    const auto& path = file.direct().path();
    for (;;) {
      const auto moved = storage_->read(file.direct(), request.offset, request.memory);
      if (moved.status().code() == Code::kUnsupported) {
        file.refuse();
        return unavailable(moved.status().message());
      }
      KVLANE_TRY(moved.status());
      Status status;
      if (finished(request, path, static_cast<std::int64_t>(*moved), status)) return status;
    }
  }

  const std::shared_ptr<gpu::DirectStorage> storage_;
  const std::unique_ptr<StoreFiles> files_;
  std::vector<std::unique_ptr<ThreadQueue>> queues_;  // one a device; end first
};

}  // namespace

std::unique_ptr<StoreFiles> direct_files(std::unique_ptr<StoreFiles> files,
                                         std::shared_ptr<gpu::DirectStorage> storage,
                                         const FileOptions& options) {
  return std::make_unique<DirectFiles>(std::move(files), std::move(storage), options);
}

}  // namespace kvlane
