// State stores for tests of engines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

#include "engine/engine_fixture.h"
#include "store/paced_files.h"
#include "store/store.h"

namespace kvlane {

// A store in that directory, which is made if it is not there; its disk reads at `pace`.
inline std::shared_ptr<Store> open_store(const std::filesystem::path& directory,
                                         const DevicePace& pace = {},
                                         std::uint64_t memory_bytes = 0) {
  std::filesystem::create_directories(directory);
  StoreOptions options{.create = true, .memory_bytes_max = memory_bytes};
  options.directories.push_back({directory, 0});
  auto files = take(open_store_files({}));
  if (pace.read_bytes_per_second > 0) files = paced_files(std::move(files), pace, 1);
  return take(Store::open(options, std::move(files)));
}

}  // namespace kvlane
