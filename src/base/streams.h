// Where long runs of bytes come from and go to: files that are read and written piece by piece,
// pipes, memory.
//
// Files are read, not mapped: an error of the disk or a file that becomes shorter is then a Status
// and not a signal, memory stays bounded, and pipes are read the same way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "kvlane/status.h"

namespace kvlane {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // How many bytes there are. Nothing: only the end will tell; then read_at must be called by one
  // thread at a time, each time with the offset behind what was read last.
  virtual std::optional<std::uint64_t> bytes() const = 0;

  // Fills `destination` with the bytes from `offset` on and returns how many there were: fewer than
  // asked for only at the end. Thread-safe if bytes() is known.
  virtual Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> destination) = 0;
};

class ByteSink {
 public:
  virtual ~ByteSink() = default;

  // Whether bytes must come in order, from one thread at a time. Else write_at is thread-safe, and
  // every byte up to the last must have been written before the sink is used.
  virtual bool sequential() const = 0;
  virtual Status write_at(std::uint64_t offset, ByteView bytes) = 0;
};

// A regular file, or whatever else can be read from front to back.
class InputFile final : public ByteSource {
 public:
  // "-" is standard input.
  static Result<InputFile> open(const std::filesystem::path& path);

  std::optional<std::uint64_t> bytes() const override { return bytes_; }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> destination) override;

 private:
  InputFile(Descriptor fd, std::filesystem::path path, std::optional<std::uint64_t> bytes)
      : fd_(std::move(fd)), path_(std::move(path)), bytes_(bytes) {}
  Descriptor fd_;
  std::filesystem::path path_;
  std::optional<std::uint64_t> bytes_;
};

// A file that has its name only when it is complete: until commit() it lies beside it as
// NAME.XXXXXX.partial, which the destructor removes.
class OutputFile final : public ByteSink {
 public:
  // Fails with kInvalidArgument when `path` is there and is not to be overwritten. What is no
  // regular file is never replaced.
  static Result<OutputFile> create(const std::filesystem::path& path, bool overwrite);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile() override;

  bool sequential() const override { return false; }
  Status write_at(std::uint64_t offset, ByteView bytes) override {
    return write_all_at(fd_.get(), offset, bytes, path_);
  }

  // Gives the file its name once its bytes are on the disk. At most once, last of all. A file of
  // that name that came into being meanwhile stays, unless it was to be overwritten.
  Status commit();

 private:
  OutputFile(Descriptor fd, std::filesystem::path path, std::filesystem::path temporary,
             bool overwrite)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        overwrite_(overwrite) {}
  Descriptor fd_;
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: nothing to remove
  bool overwrite_;
};

// Standard output, which others read while it is written.
class StandardOutput final : public ByteSink {
 public:
  bool sequential() const override { return true; }
  Status write_at(std::uint64_t offset, ByteView bytes) override;
};

// Checks are all that is wanted.
class NullSink final : public ByteSink {
 public:
  bool sequential() const override { return false; }
  Status write_at(std::uint64_t, ByteView) override { return {}; }
};

// Bytes that somebody else owns.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(ByteView bytes) : bytes_(bytes) {}
  std::optional<std::uint64_t> bytes() const override { return bytes_.size(); }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> destination) override;

 private:
  ByteView bytes_;
};

}  // namespace kvlane
