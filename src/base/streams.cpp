// Sources and sinks over the POSIX calls.
// SPDX-License-Identifier: Apache-2.0
#include "base/streams.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvlane {
namespace {

// For any open file that is no directory.
Result<std::optional<std::uint64_t>> bytes_of(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_status("inspect", path);
  if (S_ISDIR(info.st_mode)) return invalid_argument(path.string() + " is a directory");
  if (!S_ISREG(info.st_mode)) return std::optional<std::uint64_t>();
  // Files of /proc and the like say that they are empty; only reading tells.
  char byte = 0;
  if (info.st_size == 0 && ::pread(fd, &byte, 1, 0) > 0) return std::optional<std::uint64_t>();
  return std::optional<std::uint64_t>(static_cast<std::uint64_t>(info.st_size));
}

Status already_there(const std::filesystem::path& path) {
  return invalid_argument(path.string() + " is there already");
}

// The mode that a new file of this process would have; mkostemp gives its own only to the owner.
mode_t usual_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return (S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH) & ~mask;
}

// Keeps a file that has the name already; false with errno EEXIST then.
bool rename_to_new(const char* from, const char* to) {
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  // A file system without that flag: the check and the renaming are two steps then.
  if (::access(to, F_OK) == 0) {
    errno = EEXIST;
    return false;
  }
  return ::rename(from, to) == 0;
}

}  // namespace

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  const bool standard = path == "-";
  Descriptor fd(standard ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return errno_status("open", path);
  KVLANE_ASSIGN(std::optional<std::uint64_t> bytes, bytes_of(fd.get(), path));
  // Somebody may have read from it before us.
  if (standard) bytes = std::nullopt;
  return InputFile(std::move(fd), standard ? "standard input" : path, bytes);
}

Result<std::size_t> InputFile::read_at(std::uint64_t offset, std::span<std::byte> destination) {
  std::size_t there = 0;
  while (there < destination.size()) {
    std::byte* const to = destination.data() + there;
    const std::size_t wanted = destination.size() - there;
    const ssize_t got = bytes_ ? ::pread(fd_.get(), to, wanted, static_cast<off_t>(offset + there))
                               : ::read(fd_.get(), to, wanted);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("read", path_);
    if (got == 0) break;
    there += static_cast<std::size_t>(got);
  }
  return there;
}

Result<OutputFile> OutputFile::create(const std::filesystem::path& path, bool overwrite) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return invalid_argument(path.string() + " is a directory");
    if (!S_ISREG(info.st_mode)) return invalid_argument(path.string() + " is no regular file");
    if (!overwrite) return already_there(path);
  }
  std::string name = path.string() + ".XXXXXX.partial";
  Descriptor fd(::mkostemps(name.data(), static_cast<int>(std::strlen(".partial")), O_CLOEXEC));
  if (fd.get() < 0) return errno_status("create", path);
  ::fchmod(fd.get(), usual_mode());
  return OutputFile(std::move(fd), path, name, overwrite);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      overwrite_(other.overwrite_) {}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::commit() {
  // Before it gets its name: else a power cut could leave the name with none of the bytes.
  if (::fsync(fd_.get()) != 0 || !fd_.close()) return errno_status("write", path_);
  const bool renamed = overwrite_ ? ::rename(temporary_.c_str(), path_.c_str()) == 0
                                  : rename_to_new(temporary_.c_str(), path_.c_str());
  if (!renamed && errno == EEXIST) return already_there(path_);
  if (!renamed) return errno_status("rename to", path_);
  temporary_.clear();
  return {};
}

Status StandardOutput::write_at(std::uint64_t, ByteView bytes) {
  return write_all(STDOUT_FILENO, bytes, "standard output");
}

Result<std::size_t> MemorySource::read_at(std::uint64_t offset, std::span<std::byte> destination) {
  if (offset >= bytes_.size()) return std::size_t{0};
  const ByteView there = bytes_.subspan(offset).first(
      std::min<std::uint64_t>(destination.size(), bytes_.size() - offset));
  std::copy(there.begin(), there.end(), destination.begin());
  return there.size();
}

}  // namespace kvlane
