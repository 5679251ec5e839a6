// A file descriptor that is closed with its owner.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <utility>

namespace kvlane {

class OwnedFile {
 public:
  OwnedFile() = default;
  explicit OwnedFile(int file) : file_(file) {}
  ~OwnedFile() { reset(); }
  OwnedFile(OwnedFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  OwnedFile& operator=(OwnedFile&& other) noexcept {
    reset(std::exchange(other.file_, -1));
    return *this;
  }

  // -1 for none.
  int get() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }
  int release() { return std::exchange(file_, -1); }
  void reset(int file = -1) {
    if (file_ >= 0) (void)::close(file_);
    file_ = file;
  }

 private:
  int file_ = -1;
};

}  // namespace kvlane
