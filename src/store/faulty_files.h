// Files for tests, in memory: a disk that can lose what was not synced, tear writes, fail, be full.
//
// What a crash leaves is drawn from a seed: each sector of 512 bytes that was written since the
// last sync is there or not, and a file whose directory was not synced may be gone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "format/extent.h"
#include "store/files.h"

namespace kvlane {

// The disk; outlives those who use it. Thread-safe.
class FaultyDisk {
 public:
  static constexpr std::size_t kSectorBytes = 512;

  struct File {
    Bytes now;
    Bytes durable;
    bool named = false;  // its name is on the disk
  };

  // Asked before each request; a Status that is no ok() is what the request ends with. `number`
  // counts requests of one kind.
  enum class Kind { kRead, kWrite, kSync, kCreate, kGiveBack, kOpen };
  std::function<Status(Kind kind, int number, const std::string& path)> fault;
  // Of a read that is to be short.
  std::function<bool(int number)> short_read;
  // Of every file: reads of it fail.
  std::optional<std::uint64_t> lost_page;

  // How many bytes it takes, holes excepted; 0: any number.
  std::uint64_t bytes_max = 0;

  // The machine has lost power: all that comes fails until restart().
  void crash() {
    const std::lock_guard lock(mutex_);
    crashed_ = true;
  }
  void restart(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    std::uint32_t drawn = 0;
    const auto coin = [&] { return (philox4x32(seed, {++drawn, 0, 0, 0})[0] & 1) != 0; };
    for (auto entry = files_.begin(); entry != files_.end();) {
      File& file = entry->second;
      if (!file.named && coin()) {
        entry = files_.erase(entry);
        continue;
      }
      file.named = true;
      if (file.now.size() != file.durable.size() && coin()) file.now.resize(file.durable.size());
      file.durable.resize(file.now.size());
      for (std::size_t at = 0; at < file.now.size(); at += kSectorBytes) {
        const std::size_t bytes = std::min(kSectorBytes, file.now.size() - at);
        if (coin()) std::copy_n(file.now.data() + at, bytes, file.durable.data() + at);
      }
      file.now = file.durable;
      ++entry;
    }
    crashed_ = false;
  }

  // For tests that damage what lies there. The map must not be in use.
  std::map<std::string, File>& files() { return files_; }
  // Of pages that are not all zeros, which is what holes are.
  std::uint64_t bytes_kept() {
    const std::lock_guard lock(mutex_);
    return kept();
  }

 private:
  friend class FaultyFiles;

  std::uint64_t kept() const {
    std::uint64_t bytes = 0;
    for (const auto& [path, file] : files_) {
      for (std::size_t at = 0; at < file.now.size(); at += kFileAlignment) {
        const ByteView page =
            ByteView(file.now).subspan(at, std::min(kFileAlignment, file.now.size() - at));
        const bool hole = std::all_of(page.begin(), page.end(),
                                      [](std::byte byte) { return byte == std::byte{}; });
        bytes += hole ? 0 : kFileAlignment;
      }
    }
    return bytes;
  }

  Status ask(Kind kind, const std::string& path) {
    if (crashed_) return unavailable("the power is off");
    const int number = counts_[kind]++;
    return fault ? fault(kind, number, path) : Status();
  }

  std::mutex mutex_;
  std::map<std::string, File> files_;
  std::map<Kind, int> counts_;
  bool crashed_ = false;
};

// Requests are done before submit() returns.
class FaultyFiles final : public StoreFiles {
 public:
  explicit FaultyFiles(std::shared_ptr<FaultyDisk> disk) : disk_(std::move(disk)) {}

  Result<std::unique_ptr<StoreFile>> open(const std::filesystem::path& path, FileAccess access,
                                          int) override {
    const std::lock_guard lock(disk_->mutex_);
    const bool there = disk_->files_.contains(path.string());
    if (access == FileAccess::kOpen && !there) return not_found("there is no " + path.string());
    if (access == FileAccess::kCreate) {
      if (there) return invalid_argument(path.string() + " is there");
      KVLANE_TRY(disk_->ask(FaultyDisk::Kind::kCreate, path.string()));
      disk_->files_[path.string()];
    } else {
      KVLANE_TRY(disk_->ask(FaultyDisk::Kind::kOpen, path.string()));
    }
    return std::unique_ptr<StoreFile>(std::make_unique<Open>(path.string()));
  }

  void submit(FileRequest request) override {
    const Status status = transfer(request);
    request.done(status);
  }

  Status sync(StoreFile& file) override {
    const std::lock_guard lock(disk_->mutex_);
    KVLANE_TRY(disk_->ask(FaultyDisk::Kind::kSync, path_of(file)));
    FaultyDisk::File& entry = disk_->files_[path_of(file)];
    entry.durable = entry.now;
    return {};
  }

  Status give_back(StoreFile& file, std::uint64_t offset, std::uint64_t bytes) override {
    const std::lock_guard lock(disk_->mutex_);
    KVLANE_TRY(disk_->ask(FaultyDisk::Kind::kGiveBack, path_of(file)));
    FaultyDisk::File& entry = disk_->files_[path_of(file)];
    const std::size_t end = std::min<std::size_t>(offset + bytes, entry.now.size());
    if (offset < end) {
      std::fill(entry.now.begin() + static_cast<std::ptrdiff_t>(offset),
                entry.now.begin() + static_cast<std::ptrdiff_t>(end), std::byte{});
    }
    return {};
  }

  Result<std::uint64_t> bytes(StoreFile& file) override {
    const std::lock_guard lock(disk_->mutex_);
    return std::uint64_t{disk_->files_[path_of(file)].now.size()};
  }

  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override {
    const std::lock_guard lock(disk_->mutex_);
    std::vector<FileEntry> entries;
    for (const auto& [path, file] : disk_->files_) {
      const std::filesystem::path at(path);
      if (at.parent_path() == directory) {
        entries.push_back({at.filename().string(), file.now.size()});
      }
    }
    return entries;
  }

  Status remove(const std::filesystem::path& path) override {
    const std::lock_guard lock(disk_->mutex_);
    if (disk_->crashed_) return unavailable("the power is off");
    return disk_->files_.erase(path.string()) > 0 ? Status() : not_found(path.string());
  }

  Status sync_directory(const std::filesystem::path& directory) override {
    const std::lock_guard lock(disk_->mutex_);
    KVLANE_TRY(disk_->ask(FaultyDisk::Kind::kSync, directory.string()));
    for (auto& [path, file] : disk_->files_) {
      if (std::filesystem::path(path).parent_path() == directory) file.named = true;
    }
    return {};
  }

  std::string description() const override { return "faulty"; }

 private:
  struct Open final : StoreFile {
    explicit Open(std::string at) : path(std::move(at)) {}
    std::string path;
  };
  static const std::string& path_of(StoreFile& file) { return static_cast<Open&>(file).path; }

  Status transfer(const FileRequest& request) {
    const std::lock_guard lock(disk_->mutex_);
    const std::string& path = path_of(*request.file);
    const auto kind = request.write ? FaultyDisk::Kind::kWrite : FaultyDisk::Kind::kRead;
    const int number = disk_->counts_[kind];
    KVLANE_TRY(disk_->ask(kind, path));
    Bytes& now = disk_->files_[path].now;
    const std::size_t end = request.offset + request.memory.size();
    if (request.write) {
      if (disk_->bytes_max > 0 && disk_->kept() + request.memory.size() > disk_->bytes_max) {
        return exhausted("cannot write " + path + ": No space left on device");
      }
      if (now.size() < end) now.resize(end);
      std::copy(request.memory.begin(), request.memory.end(),
                now.begin() + static_cast<std::ptrdiff_t>(request.offset));
      return {};
    }
    if (end > now.size() || (disk_->short_read && disk_->short_read(number))) {
      return corrupt(path + " ends before byte " + std::to_string(end));
    }
    const std::uint64_t lost = disk_->lost_page.value_or(0) * kExtentPageBytes;
    if (disk_->lost_page && request.offset <= lost && lost < end) {
      return unavailable("cannot read " + path + ": Input/output error");
    }
    std::copy_n(now.begin() + static_cast<std::ptrdiff_t>(request.offset), request.memory.size(),
                request.memory.begin());
    return {};
  }

  std::shared_ptr<FaultyDisk> disk_;
};

}  // namespace kvlane
