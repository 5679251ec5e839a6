// `kvlane bench store`: how fast a state store gives back what lies on disks, beside its files
// alone, and what codecs gain.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "cpu/isa.h"
#include "kvlane/status.h"

namespace kvlane {

struct StoreBenchOptions {
  // One a device. What is written goes to a new directory in each and is removed afterwards.
  std::vector<std::filesystem::path> directories;
  std::uint64_t bytes = std::uint64_t{2} << 30;  // of values, over all directories
  std::size_t extent_bytes = std::size_t{1} << 20;
  int depth = 32;              // reads under way on each device
  int repeats = 5;             // medians are over so many rounds
  std::string codec = "none";  // if another one: extents of coded planes are read and decoded, too
  std::filesystem::path values;  // a file of bfloat16 values; empty: Gaussian ones
  int threads = 1;               // that decode
  double read_rate = 0;          // bytes a second of each device; 0: as fast as it is
  Isa isa = Isa::kScalar;
  std::function<void(std::string_view)> progress;
};

// The multiple that extent_bytes has to be: K and V of 64 tokens of a head of 128 channels.
inline constexpr std::size_t kStoreBenchHeadBytes = 2 * 64 * 128 * 2;

// Fills stores, then reads all of their extents in random order, in rounds of files, store and
// codec. Figures: docs/bench.md. kInternal when what comes back is not what was written.
Result<Report> bench_store(const StoreBenchOptions& options);

}  // namespace kvlane
