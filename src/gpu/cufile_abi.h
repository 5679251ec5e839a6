// The part of cuFile that we call, as libcufile.so.0 has it: declared here, so that neither its
// header nor the library is needed to build or to start.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace kvlane::gpu::cufile {

// What functions tell; cuFileRead() tells -code, or -1 and errno. cuda: of code kCudaError.
struct Error {
  int code;
  int cuda;
};
enum : int {
  kSuccess = 0,
  kNoDriver = 5001,
  kFileRefused = 5008,
  kCudaError = 5011,
  kNotDirect = 5020,
  kInvalidValue = 5022,
  kDriverIsOpen = 5026,
  kNoSetup = 5033,
  kNotPinned = 5036,
};

// A file that is to be registered.
struct Descriptor {
  int type;  // kLinuxFile
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;  // of file systems in user space
};
inline constexpr int kLinuxFile = 1;
static_assert(sizeof(Descriptor) == 24 && offsetof(Descriptor, file) == 8);

struct Properties {
  unsigned driver_major, driver_minor;  // of nvidia-fs; zeros without it
  std::size_t poll_bytes;
  std::size_t direct_kib_max;
  unsigned supported;  // what the drivers can do, by bits
  unsigned control;
  unsigned rest[56];  // 6 so far
};
static_assert(offsetof(Properties, supported) == 24);
// Of `supported`: NVMe without nvidia-fs, by the kernel's peer-to-peer transfers.
inline constexpr unsigned kPeerToPeer = 1U << 11;

// Of cuFileSetParameterBool(): whether files that cannot be read directly are read through the
// host.
inline constexpr int kAllowCompatible = 1;

using DriverOpen = Error();
using DriverClose = Error();
using DriverGetProperties = Error(Properties*);
using SetParameterBool = Error(int parameter, bool value);
using GetVersion = Error(int* version);  // 1000 major + 10 minor
using HandleRegister = Error(void** handle, Descriptor* file);
using HandleDeregister = void(void* handle);
using BufRegister = Error(const void* base, std::size_t bytes, int flags);
using BufDeregister = Error(const void* base);
// `base`: as it was registered. How many bytes were read, or what went wrong, as above.
using Read = ssize_t(void* handle, void* base, std::size_t bytes, off_t file_offset,
                     off_t base_offset);

}  // namespace kvlane::gpu::cufile
