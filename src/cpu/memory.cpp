// Pages over mmap.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

namespace kvlane {

Result<PageBuffer> PageBuffer::allocate(std::size_t bytes) {
  PageBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return exhausted("the system has no " + std::to_string(bytes) + " bytes of memory left");
  }
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without huge pages all works, a little slower
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total_pages = 0;
  std::size_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace kvlane
