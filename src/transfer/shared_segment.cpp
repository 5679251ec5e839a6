// Segments by memfd_create: without a name, in memory alone, and with seals, because a peer that
// could make the file shorter could kill whoever touches what is gone.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvlane {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t segment_bytes(std::size_t ring_bytes) { return kSharedHeaderBytes + 2 * ring_bytes; }

Status system_says(const char* what) {
  return unavailable(std::string("no shared memory, ") + what + ": " + std::strerror(errno));
}

}  // namespace

bool is_ring_size(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kRingBytesMin && bytes <= kRingBytesMax;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::create(std::size_t ring_bytes,
                                                             OwnedFile* file) {
  if (!is_ring_size(ring_bytes)) {
    return invalid_argument("a ring of " + std::to_string(ring_bytes) +
                            " bytes: a power of two from " + std::to_string(kRingBytesMin) +
                            " to " + std::to_string(kRingBytesMax) + " is needed");
  }
  const std::size_t bytes = segment_bytes(ring_bytes);
  // Beyond this limit the system would not only refuse but end the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return unavailable("no shared memory, files of this process have " +
                       std::to_string(limit.rlim_cur) + " bytes at most");
  }
  file->reset(::memfd_create("kvlane-transfer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!*file) return system_says("memfd_create");
  // Now, because a page that cannot be had later would end the process that touches it.
  if (::fallocate(file->get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return system_says("fallocate");
  if (::fcntl(file->get(), F_ADD_SEALS, kSeals) != 0) return system_says("F_ADD_SEALS");
  return map(file->get(), ring_bytes);
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::adopt(const OwnedFile& file,
                                                            std::size_t ring_bytes) {
  if (!is_ring_size(ring_bytes)) {
    return corrupt("rings of " + std::to_string(ring_bytes) + " bytes were offered");
  }
  // Seals alone do not tell: files of huge pages have them as well, and can lack pages later.
  struct statfs system {};
  struct stat info {};
  if (::fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC ||
      ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return corrupt("the file that was offered is no memory");
  }
  if (info.st_size != static_cast<off_t>(segment_bytes(ring_bytes))) {
    return corrupt("a segment of " + std::to_string(info.st_size) + " bytes for rings of " +
                   std::to_string(ring_bytes) + " was offered");
  }
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return corrupt("the segment that was offered can be made shorter");
  }
  return map(file.get(), ring_bytes);
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::map(int file, std::size_t ring_bytes) {
  void* const data =
      ::mmap(nullptr, segment_bytes(ring_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return system_says("mmap");
  return std::unique_ptr<SharedSegment>(
      new SharedSegment(static_cast<std::byte*>(data), ring_bytes));
}

SharedSegment::~SharedSegment() { (void)::munmap(data_, segment_bytes(ring_bytes_)); }

// The page came from the system as zeros, which is what atomics of integers begin with.
RingControl& SharedSegment::control(int ring) const {
  return *reinterpret_cast<RingControl*>(data_ + sizeof(RingControl) * ring);
}

std::span<std::byte> SharedSegment::bytes(int ring) const {
  return {data_ + kSharedHeaderBytes + ring_bytes_ * ring, ring_bytes_};
}

}  // namespace kvlane
