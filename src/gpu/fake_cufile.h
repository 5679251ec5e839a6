// A cuFile for tests: a library with its functions, which reads by the system into memory that the
// process can reach, and refuses what the real one would. Tests load it by its path, as the product
// loads the real one by its name, and tell it what to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

#include "base/test_paths.h"

namespace kvlane {

struct FakeCuFile {
  int driver_error = 0;  // of cuFileDriverOpen()
  bool has_nvidia_fs = true;
  int file_error = 0, memory_error = 0;  // of what is registered
  // Runs what touches memory of a device.
  std::function<void(const std::function<void()>&)> with_memory;
  // Of the read with this number, from 0 on: how many bytes of so many come, or what it tells
  // instead.
  std::function<ssize_t(int number, std::size_t bytes)> outcome;
  std::atomic<bool> lies = false;  // says that bytes came, and brings none

  std::atomic<int> reads = 0;
  std::atomic<int> files = 0, memories = 0, drivers = 0;  // that are registered or open
  std::atomic<bool> compatible = true;

  // As it was when it was loaded, but for what is open.
  void reset() {
    driver_error = file_error = memory_error = 0;
    has_nvidia_fs = true;
    with_memory = nullptr;
    outcome = nullptr;
    lies = false;
    reads = 0;
    compatible = true;
  }
};

// Whether the file system of a directory reads past the caches of the system: tests of direct reads
// are skipped elsewhere.
inline bool reads_past_caches(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

inline FakeCuFile& fake_cufile() {
  void* const file = dlopen(kFakeCufile, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) throw std::runtime_error(dlerror());
  const auto get = reinterpret_cast<FakeCuFile* (*)()>(dlsym(file, "kvlane_fake_cufile"));
  return *get();
}

}  // namespace kvlane
