// Threads that read, each its requests in turn.
// SPDX-License-Identifier: Apache-2.0
#include "bench/read_rate.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "bench/figures.h"
#include "cpu/memory.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRequestBytes = std::size_t{1} << 20;
constexpr int kReadersOfFile = 4;
constexpr int kRepeats = 3;

// A file that is gone with its last descriptor.
class ProbeFile {
 public:
  static Result<ProbeFile> create(const fs::path& directory, std::size_t bytes) {
    std::string path = (directory / "kvlane-read-rate-XXXXXX").string();
    Descriptor written(::mkstemp(path.data()));
    if (written.get() < 0) return errno_status("make a file in", directory);
    ProbeFile file;
    file.bytes_ = bytes;
    file.open(path);
    ::unlink(path.c_str());
    if (file.fd_.get() < 0) return errno_status("open a file in", directory);
    KVLANE_ASSIGN(const PageBuffer buffer, PageBuffer::allocate(kRequestBytes));
    for (std::size_t at = 0; at < bytes; at += kRequestBytes) {
      // Not all alike: some file systems store nothing then.
      std::memset(buffer.data(), static_cast<int>(at / kRequestBytes % 255 + 1), kRequestBytes);
      KVLANE_TRY(write_all_at(written.get(), at, {buffer.data(), kRequestBytes}, directory));
    }
    if (::fsync(written.get()) != 0) return errno_status("write a file in", directory);
    return file;
  }

  // Before reading starts.
  void forget() const {
    if (!direct_) ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  // Requests `reader`, `reader` + kReadersOfFile, ...; false on an error.
  bool read(int reader, std::byte* buffer) const {
    for (std::size_t at = reader * kRequestBytes; at < bytes_;
         at += kReadersOfFile * kRequestBytes) {
      if (::pread(fd_.get(), buffer, kRequestBytes, static_cast<off_t>(at)) !=
          static_cast<ssize_t>(kRequestBytes)) {
        return false;
      }
    }
    return true;
  }

 private:
  ProbeFile() = default;

  void open(const std::string& path) {
    fd_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    direct_ = fd_.get() >= 0;
    if (!direct_) fd_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }

  Descriptor fd_;
  bool direct_ = false;
  std::size_t bytes_ = 0;
};

// Seconds to read all of these files at once.
Result<double> read_all(std::span<const ProbeFile> files, const PageBuffer& buffers) {
  for (const ProbeFile& file : files) file.forget();
  std::vector<std::thread> readers;
  std::vector<char> read(files.size() * kReadersOfFile);
  const TimePoint start = SteadyClock::now();
  for (std::size_t i = 0; i < read.size(); ++i) {
    readers.emplace_back([&files, &buffers, &read, i] {
      const ProbeFile& file = files[i / kReadersOfFile];
      read[i] = file.read(static_cast<int>(i % kReadersOfFile), buffers.data() + i * kRequestBytes)
                    ? 1
                    : 0;
    });
  }
  for (std::thread& reader : readers) reader.join();
  const double seconds = seconds_since(start);
  if (std::find(read.begin(), read.end(), 0) != read.end()) {
    return unavailable("a file that was written to measure reading could not be read");
  }
  return seconds;
}

Result<double> read_rate(std::span<const ProbeFile> files, const PageBuffer& buffers,
                         std::size_t bytes) {
  std::vector<double> rates;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    KVLANE_ASSIGN(const double seconds, read_all(files, buffers));
    rates.push_back(static_cast<double>(bytes * files.size()) / std::max(seconds, 1e-9));
  }
  return median(std::move(rates));
}

}  // namespace

Result<ReadRates> measure_read_rates(std::span<const fs::path> directories, std::size_t bytes) {
  bytes = std::max<std::size_t>(1, (bytes + kRequestBytes - 1) / kRequestBytes) * kRequestBytes;
  std::vector<ProbeFile> files;
  for (const fs::path& directory : directories) {
    KVLANE_ASSIGN(ProbeFile file, ProbeFile::create(directory, bytes));
    files.push_back(std::move(file));
  }
  KVLANE_ASSIGN(const PageBuffer buffers,
                PageBuffer::allocate(files.size() * kReadersOfFile * kRequestBytes));
  ReadRates rates;
  for (const ProbeFile& file : files) {
    KVLANE_ASSIGN(const double rate, read_rate({&file, 1}, buffers, bytes));
    rates.each.push_back(rate);
  }
  rates.together = rates.each[0];
  if (files.size() > 1) {
    KVLANE_ASSIGN(rates.together, read_rate(files, buffers, bytes));
  }
  return rates;
}

}  // namespace kvlane
