// What all files over the POSIX calls share: a descriptor that closes itself, and errors as one
// sentence that names the path.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// Closes a descriptor at the end of its life. Movable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  // Closes now; false when the system then tells of a write that failed late.
  bool close();

 private:
  int fd_ = -1;
};

// "cannot open PATH: No such file or directory", from errno.
Status errno_status(const char* verb, const std::filesystem::path& path);

// The size of an open regular file; only these have one worth trusting.
Result<std::size_t> regular_file_bytes(int fd, const std::filesystem::path& path);

// All of `bytes` at `offset` of a file, or behind what was written before to a pipe.
Status write_all_at(int fd, std::uint64_t offset, ByteView bytes,
                    const std::filesystem::path& path);
Status write_all(int fd, ByteView bytes, const std::filesystem::path& path);

}  // namespace kvlane
