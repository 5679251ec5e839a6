// The library of gpu/fake_cufile.h.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "gpu/cufile_abi.h"
#include "gpu/fake_cufile.h"

namespace {

using namespace kvlane::gpu::cufile;

kvlane::FakeCuFile fake;
std::mutex mutex;
std::map<const std::byte*, std::size_t> memories;

constexpr std::size_t kAlignment = 4096;

// Whether it was registered, and nothing reaches beyond it.
bool is_taken(const std::byte* base, std::size_t end) {
  const std::lock_guard lock(mutex);
  const auto memory = memories.find(base);
  return memory != memories.end() && end <= memory->second;
}

}  // namespace

extern "C" {

kvlane::FakeCuFile* kvlane_fake_cufile() { return &fake; }

Error cuFileDriverOpen() {
  if (fake.driver_error != 0) return {fake.driver_error, 0};
  if (fake.drivers.exchange(1) != 0) return {kDriverIsOpen, 0};
  return {};
}

Error cuFileDriverClose_v2() {
  fake.drivers = 0;
  return {};
}

Error cuFileDriverGetProperties(Properties* properties) {
  if (fake.has_nvidia_fs) properties->driver_major = 2;
  return {};
}

Error cuFileSetParameterBool(int parameter, bool value) {
  if (fake.drivers != 0) return {kDriverIsOpen, 0};
  if (parameter == kAllowCompatible) fake.compatible = value;
  return {};
}

Error cuFileGetVersion(int* version) {
  *version = 1140;
  return {};
}

Error cuFileHandleRegister(void** handle, Descriptor* file) {
  if (fake.file_error != 0) return {fake.file_error, 0};
  if (file->type != kLinuxFile || file->operations != nullptr) return {kInvalidValue, 0};
  const int flags = ::fcntl(file->file.fd, F_GETFL);
  if (flags < 0 || (flags & O_DIRECT) == 0) return {kNotDirect, 0};
  fake.files += 1;
  *handle = reinterpret_cast<void*>(std::intptr_t{file->file.fd});
  return {};
}

void cuFileHandleDeregister(void*) { fake.files -= 1; }

Error cuFileBufRegister(const void* base, std::size_t bytes, int flags) {
  if (fake.memory_error != 0) return {fake.memory_error, 0};
  if (flags != 0) return {kInvalidValue, 0};
  const std::lock_guard lock(mutex);
  memories[static_cast<const std::byte*>(base)] = bytes;
  fake.memories += 1;
  return {};
}

Error cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(mutex);
  if (memories.erase(static_cast<const std::byte*>(base)) == 0) return {kInvalidValue, 0};
  fake.memories -= 1;
  return {};
}

ssize_t cuFileRead(void* handle, void* base, std::size_t bytes, off_t file_offset,
                   off_t base_offset) {
  const auto offset = static_cast<std::size_t>(base_offset);
  const bool aligned = (bytes | static_cast<std::size_t>(file_offset) | offset) % kAlignment == 0;
  if (!aligned || !is_taken(static_cast<std::byte*>(base), offset + bytes)) return -kInvalidValue;
  const int number = fake.reads++;
  if (fake.outcome != nullptr) {
    const ssize_t outcome = fake.outcome(number, bytes);
    errno = EIO;
    if (outcome < 0) return outcome;
    bytes = static_cast<std::size_t>(outcome);
  }
  if (fake.lies) return static_cast<ssize_t>(bytes);
  ssize_t moved = 0;
  const auto read = [&] {
    const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
    moved = ::pread(fd, static_cast<std::byte*>(base) + offset, bytes, file_offset);
  };
  if (fake.with_memory != nullptr) {
    fake.with_memory(read);
  } else {
    read();
  }
  return moved;
}

}  // extern "C"
