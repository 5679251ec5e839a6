// Files over the POSIX calls, each failure as one sentence that names the path.
// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/descriptor.h"

namespace kvlane {
namespace {

// O_NONBLOCK: opening a pipe must not wait for its writer. Regular files do not know the flag.
constexpr int kOpenToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

}  // namespace

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t bytes_max) {
  const Descriptor fd(::open(path.c_str(), kOpenToRead));
  if (fd.get() < 0) return errno_status("open", path);
  KVLANE_ASSIGN(const std::size_t bytes, regular_file_bytes(fd.get(), path));
  if (bytes > bytes_max) {
    return invalid_argument(path.string() + " has " + std::to_string(bytes) +
                            " bytes, more than the limit of " + std::to_string(bytes_max));
  }
  std::string text(bytes, '\0');
  std::size_t at = 0;
  while (at < bytes) {
    const ssize_t got = ::read(fd.get(), text.data() + at, bytes - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("read", path);
    if (got == 0) return corrupt(path.string() + " became shorter while it was read");
    at += static_cast<std::size_t>(got);
  }
  return text;
}

namespace {

Status write_durably(const std::filesystem::path& path, ByteView bytes) {
  constexpr mode_t kMode = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (fd.get() < 0) return errno_status("create", path);
  KVLANE_TRY(write_all(fd.get(), bytes, path));
  // Before the rename: else a power cut could leave the new name with none of the bytes.
  if (::fsync(fd.get()) != 0 || !fd.close()) return errno_status("write", path);
  return {};
}

}  // namespace

Status write_file(const std::filesystem::path& path, ByteView bytes) {
  const std::filesystem::path temporary = path.string() + ".partial";
  Status status = write_durably(temporary, bytes);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = errno_status("rename to", path);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor fd(::open(path.c_str(), kOpenToRead));
  if (fd.get() < 0) return errno_status("open", path);
  KVLANE_ASSIGN(const std::size_t bytes, regular_file_bytes(fd.get(), path));
  MappedFile file;
  if (bytes == 0) return file;  // mmap refuses an empty mapping; an empty view says the same
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return errno_status("map", path);
  file.data_ = static_cast<const std::byte*>(data);
  file.bytes_ = bytes;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
}

void MappedFile::release(ByteView part) const {
  // Only whole pages inside `part` may go: their neighbours may still be in use.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto last = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace kvlane
