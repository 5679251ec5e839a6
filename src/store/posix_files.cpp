// Files over the POSIX calls, and the choice between the backends.
// SPDX-License-Identifier: Apache-2.0
#include "store/posix_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <system_error>

namespace kvlane {
namespace {

constexpr mode_t kMode = S_IRUSR | S_IWUSR;
constexpr int kDepthMax = 4096;

const PosixFile& posix(const StoreFile& file) { return static_cast<const PosixFile&>(file); }

}  // namespace

Result<std::unique_ptr<StoreFile>> PosixFiles::open(const std::filesystem::path& path,
                                                    FileAccess access, int device) {
  if (device < 0 || device >= devices_) {
    return invalid_argument("there is no device " + std::to_string(device));
  }
  const bool create = access == FileAccess::kCreate;
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
  const bool wanted = direct_;
  int fd = ::open(path.c_str(), wanted ? flags | O_DIRECT : flags, kMode);
  if (fd < 0 && wanted && errno == EINVAL) {
    direct_ = false;
    // A file system that refuses O_DIRECT has created the file nevertheless.
    fd = ::open(path.c_str(), flags & ~O_EXCL, kMode);
  }
  if (fd < 0) return errno_status(create ? "create" : "open", path);
  return std::unique_ptr<StoreFile>(std::make_unique<PosixFile>(Descriptor(fd), path, device));
}

Status PosixFiles::sync(StoreFile& file) {
  if (::fdatasync(posix(file).fd()) == 0) return {};
  return unavailable(errno_status("write", posix(file).path()).message());
}

Status PosixFiles::give_back(StoreFile& file, std::uint64_t offset, std::uint64_t bytes) {
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (::fallocate(posix(file).fd(), mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) ==
      0) {
    return {};
  }
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    return unsupported("the file system of " + posix(file).path().string() + " has no holes");
  }
  return errno_status("make a hole in", posix(file).path());
}

Result<std::uint64_t> PosixFiles::bytes(StoreFile& file) {
  KVLANE_ASSIGN(const std::size_t bytes, regular_file_bytes(posix(file).fd(), posix(file).path()));
  return std::uint64_t{bytes};
}

Result<std::vector<FileEntry>> PosixFiles::list(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<FileEntry> entries;
  auto at = std::filesystem::directory_iterator(directory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::error_code gone;  // a file that vanishes meanwhile is not there
    if (!at->is_regular_file(gone)) continue;
    const std::uint64_t bytes = at->file_size(gone);
    if (!gone) entries.push_back({at->path().filename().string(), bytes});
  }
  if (error) return not_found("cannot list " + directory.string() + ": " + error.message());
  return entries;
}

Status PosixFiles::remove(const std::filesystem::path& path) {
  return ::unlink(path.c_str()) == 0 ? Status() : errno_status("remove", path);
}

Status PosixFiles::sync_directory(const std::filesystem::path& directory) {
  const Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno_status("open", directory);
  return ::fsync(fd.get()) == 0 ? Status() : errno_status("write", directory);
}

bool finished(FileRequest& request, const std::filesystem::path& path, std::int64_t result,
              Status& status) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) {
    errno = static_cast<int>(-result);
    const Status why = errno_status(request.write ? "write" : "read", path);
    status = why.code() == Code::kExhausted ? why : unavailable(why.message());
    return true;
  }
  const auto moved = static_cast<std::size_t>(result);
  // Regular files give less than was asked for at their end alone.
  if (moved == 0 || (moved < request.memory.size() && moved % kFileAlignment != 0)) {
    status = corrupt(path.string() + " ends before byte " +
                     std::to_string(request.offset + request.memory.size()));
    return true;
  }
  request.offset += moved;
  request.memory = request.memory.subspan(moved);
  status = {};
  return request.memory.empty();
}

Result<std::unique_ptr<StoreFiles>> open_store_files(const FileOptions& options) {
  if (options.devices < 1 || options.depth < 1 || options.depth > kDepthMax) {
    return invalid_argument("files have 1 device or more and a depth of 1 to " +
                            std::to_string(kDepthMax));
  }
  if (options.backend != FileOptions::Backend::kThreads) {
    auto files = open_uring_files(options);
    if (files.ok() || options.backend == FileOptions::Backend::kIoUring) return files;
  }
  return open_thread_files(options);
}

Status transfer_and_wait(StoreFiles& files, StoreFile& file, bool write, std::uint64_t offset,
                         std::span<std::byte> memory) {
  const auto outcome = std::make_shared<std::promise<Status>>();
  std::future<Status> future = outcome->get_future();
  files.submit({.file = &file,
                .write = write,
                .offset = offset,
                .memory = memory,
                .done = [outcome](const Status& status) { outcome->set_value(status); }});
  return future.get();
}

}  // namespace kvlane
