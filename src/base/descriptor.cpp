// Descriptors and their errors.
// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvlane {

bool Descriptor::close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

Status errno_status(const char* verb, const std::filesystem::path& path) {
  const int error = errno;
  std::string message =
      std::string("cannot ") + verb + " " + path.string() + ": " + std::strerror(error);
  if (error == ENOENT || error == ENOTDIR) return not_found(std::move(message));
  if (error == ENOSPC || error == EDQUOT) return exhausted(std::move(message));
  // The process's or the system's descriptors, and not the disk, are short.
  if (error == EMFILE || error == ENFILE) return unavailable(std::move(message));
  return invalid_argument(std::move(message));
}

Result<std::size_t> regular_file_bytes(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_status("inspect", path);
  if (!S_ISREG(info.st_mode)) return invalid_argument(path.string() + " is not a regular file");
  return static_cast<std::size_t>(info.st_size);
}

Status write_all_at(int fd, std::uint64_t offset, ByteView bytes,
                    const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno_status("write", path);
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Status write_all(int fd, ByteView bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno_status("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

}  // namespace kvlane
