// How fast files of directories are read, past the system's cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

struct ReadRates {
  std::vector<double> each;  // bytes a second, one directory after the other
  double together = 0;       // all at once
};

// Writes a file of `bytes` bytes, rounded up to 1 MiB, to each directory, reads it several times in
// requests of 1 MiB, four at a time, and takes it away again. Reads are direct where the file
// system has that; else pages are dropped from the system's cache before, as far as it does that:
// of a file system in memory the rate is that of memory. At least one directory; errors name it.
Result<ReadRates> measure_read_rates(std::span<const std::filesystem::path> directories,
                                     std::size_t bytes);

}  // namespace kvlane
