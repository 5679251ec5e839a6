// Files as the store uses them: reads and writes that are under way while others are asked for,
// past the caches of the system where it allows that.
//
// Backends are io_uring and threads. Decorators make a disk slow for benchmarks (paced_files.h) or
// unreliable for tests (faulty_files.h), or read to memory of a device (direct_files.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/direct_storage.h"
#include "kvlane/status.h"

namespace kvlane {

// Offsets, lengths and addresses of memory are multiples of it.
inline constexpr std::size_t kFileAlignment = 4096;

// A file that is open. Who has made requests of it keeps it until they are done.
class StoreFile {
 public:
  virtual ~StoreFile() = default;
};

// kOpen: it must be there. kCreate: it must not.
enum class FileAccess { kOpen, kCreate };

struct FileRequest {
  StoreFile* file = nullptr;
  bool write = false;
  std::uint64_t offset = 0;
  std::span<std::byte> memory;  // stays the caller's, who leaves it alone until done() is called
  // Called once, on a thread of the files (or of the caller, if there is nothing to wait for),
  // which must not be held up and must not destroy the files. Short reads are kCorrupt, a full disk
  // is kExhausted, what the device does not do is kUnavailable.
  std::function<void(const Status&)> done;
  // A read into memory of a device, of a file that reads_to_device().
  bool to_device = false;
};

struct FileEntry {
  std::string name;
  std::uint64_t bytes = 0;
};

// Thread-safe. The destructor waits for all requests.
class StoreFiles {
 public:
  virtual ~StoreFiles() = default;

  // `device`, 0 ... devices - 1: whose queue the file's requests go to.
  virtual Result<std::unique_ptr<StoreFile>> open(const std::filesystem::path& path,
                                                  FileAccess access, int device) = 0;

  // Begins the request or lets it wait in line; as many of one device as its depth are under way.
  // Does not wait. Errors come through done().
  virtual void submit(FileRequest request) = 0;

  // Returns when what was written is on the disk.
  virtual Status sync(StoreFile& file) = 0;
  // Bytes that read as zeros from now on, or as they were, and need not be kept. kUnsupported where
  // the file system has no holes.
  virtual Status give_back(StoreFile& file, std::uint64_t offset, std::uint64_t bytes) = 0;

  virtual Result<std::uint64_t> bytes(StoreFile& file) = 0;
  // Regular files of a directory, in no order.
  virtual Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) = 0;
  virtual Status remove(const std::filesystem::path& path) = 0;
  // Returns when names that were added or removed are on the disk.
  virtual Status sync_directory(const std::filesystem::path& directory) = 0;

  // By what files are read into memory of a device, which it has to take before; null: by nothing.
  virtual gpu::DirectStorage* direct_storage() const { return nullptr; }
  // Whether this one is, as far as is known.
  virtual bool reads_to_device(const StoreFile& /*file*/) const { return false; }

  // For people: "io_uring, direct".
  virtual std::string description() const = 0;
};

struct FileOptions {
  enum class Backend { kAuto, kIoUring, kThreads };
  Backend backend = Backend::kAuto;  // kAuto: io_uring where the system has it, else threads
  int devices = 1;
  int depth = 32;      // requests under way on each device, 1 ... 4096
  bool direct = true;  // O_DIRECT; a file system that refuses is used through the caches
};

// Fails with kUnsupported when kIoUring was asked for and the system refuses it.
Result<std::unique_ptr<StoreFiles>> open_store_files(const FileOptions& options);

// Reads or writes and waits for the end.
Status transfer_and_wait(StoreFiles& files, StoreFile& file, bool write, std::uint64_t offset,
                         std::span<std::byte> memory);

}  // namespace kvlane
