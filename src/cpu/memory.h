// Large, aligned memory that is taken once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "kvlane/status.h"

namespace kvlane {

// Zeroed pages from the system, aligned to 4 KiB at least, in huge pages where the system has them.
// Counts as resident only where it was touched. Movable; returned by the destructor.
class PageBuffer {
 public:
  // kExhausted when the system refuses.
  static Result<PageBuffer> allocate(std::size_t bytes);

  PageBuffer() = default;
  PageBuffer(PageBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  ~PageBuffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Bytes of memory this process has resident now.
std::size_t resident_bytes();

}  // namespace kvlane
