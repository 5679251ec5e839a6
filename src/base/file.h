// Files as they are read here: whole, or mapped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// The whole file as text. Fails with kNotFound, or kInvalidArgument when it is larger than
// `bytes_max` or not a regular file (a pipe is refused at once, not waited for).
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t bytes_max);

// Writes through `path`.partial and renames it, so that `path` is never half written, not even
// after a power cut. On failure `path` is as it was and nothing is left beside it. One writer at a
// time per path.
Status write_file(const std::filesystem::path& path, ByteView bytes);

// A read-only, private mapping of a whole file. Movable; unmapped by the destructor. Nobody may
// make the file shorter while it is mapped: the system ends a process that reads a page which is
// gone.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  ByteView bytes() const { return {data_, bytes_}; }

  // Tells the system that `part` (of bytes()) was read for the last time for now, so that it does
  // not count as resident. It can still be read: it is then loaded again.
  void release(ByteView part) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kvlane
