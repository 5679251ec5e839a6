// Reads from a disk into memory of a device, past the host's (GPUDirect Storage), by NVIDIA's
// library cuFile, which is found at run time.
//
// Where the library, its driver or the file system do not do it, opening says so in a sentence, and
// who asked goes through the host. Reading through the host is nothing that the library may do in
// our place: we have a way of our own, which checks bytes on its way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "kvlane/status.h"

namespace kvlane::gpu {

// Thread-safe, as are its parts. One at a time in a process. What it gives keeps it alive.
class DirectStorage : public std::enable_shared_from_this<DirectStorage> {
 public:
  static constexpr const char* kLibrary = "libcufile.so.0";

  // `enter` makes the device the current one of the thread that calls: called on any, whenever the
  // library is. kUnavailable without library or driver.
  static Result<std::shared_ptr<DirectStorage>> open(std::function<Status()> enter,
                                                     const std::string& library = kLibrary);
  ~DirectStorage();
  DirectStorage(const DirectStorage&) = delete;
  DirectStorage& operator=(const DirectStorage&) = delete;

  // A file that can be read directly.
  class File {
   public:
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const std::filesystem::path& path() const { return path_; }

   private:
    friend class DirectStorage;
    File(std::shared_ptr<DirectStorage> storage, std::filesystem::path path, Descriptor fd)
        : storage_(std::move(storage)), path_(std::move(path)), fd_(std::move(fd)) {}
    const std::shared_ptr<DirectStorage> storage_;
    const std::filesystem::path path_;
    const Descriptor fd_;
    void* handle_ = nullptr;
  };
  // kUnsupported where the file system does not do it.
  Result<std::unique_ptr<File>> open_file(const std::filesystem::path& path);
  // Whether files of this directory would be read directly: asked of one that is gone again.
  Status try_directory(const std::filesystem::path& directory);

  // Memory of the device that can be read into, as long as this lives; the device's end of it takes
  // room in an address window (BAR1), which may be small. The memory outlives it.
  class Memory {
   public:
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

   private:
    friend class DirectStorage;
    Memory(std::shared_ptr<DirectStorage> storage, std::byte* base)
        : storage_(std::move(storage)), base_(base) {}
    const std::shared_ptr<DirectStorage> storage_;
    std::byte* const base_;
  };
  // kUnavailable where the library refuses.
  Result<std::unique_ptr<Memory>> take_memory(std::span<std::byte> memory);

  // Reads into memory that was taken; offset, length and address are multiples of 4,096. Returns
  // when the bytes are there: how many, fewer than asked for at the end of a file or for no reason.
  // kUnavailable: the disk did not give them. kUnsupported: the library did not, and will not.
  Result<std::size_t> read(const File& file, std::uint64_t offset, std::span<std::byte> memory);

  // For people: "cuFile 1.14".
  const std::string& description() const { return description_; }

 private:
  struct Library;
  DirectStorage(std::function<Status()> enter, std::unique_ptr<Library> library);
  Status open_driver();
  Result<std::unique_ptr<File>> add_file(const std::filesystem::path& path, Descriptor fd);

  const std::function<Status()> enter_;
  const std::unique_ptr<Library> library_;
  std::string description_;
  bool driver_is_ours_ = false;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> memories_;  // that were taken: where they begin, and bytes
};

}  // namespace kvlane::gpu
