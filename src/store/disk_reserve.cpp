// fallocate() and ftruncate().
// SPDX-License-Identifier: Apache-2.0
#include "store/disk_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace kvlane {

DiskReserve DiskReserve::open(const std::filesystem::path& path) {
  DiskReserve reserve;
  reserve.fd_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  reserve.held_ = true;
  reserve.spend();
  return reserve;
}

bool DiskReserve::take() {
  if (held_ || fd_.get() < 0) return true;
  for (std::uint64_t bytes = kBytesMax; bytes >= kBytesMin; bytes /= 4) {
    if (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) == 0) {
      held_ = true;
      return true;
    }
    if (errno != ENOSPC && errno != EDQUOT && errno != EINTR) {
      fd_ = Descriptor();
      return true;
    }
    // What it may have got before it found that there is not enough.
    if (::ftruncate(fd_.get(), 0) != 0) return false;
  }
  return false;
}

void DiskReserve::spend() {
  if (fd_.get() < 0 || !held_) return;
  held_ = ::ftruncate(fd_.get(), 0) != 0;
}

}  // namespace kvlane
