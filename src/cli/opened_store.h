// A state store that the command line names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/direct_storage.h"
#include "kvlane/status.h"
#include "store/store.h"

namespace kvlane {

// What all commands say alike about a store.
struct StorePlace {
  const std::vector<std::string>& directories;
  std::uint64_t bytes_max;      // of each; 0: no limit
  const std::string& key_file;  // with 64 lower-case hexadecimal digits; empty: not encrypted
  std::shared_ptr<gpu::DirectStorage> direct{};  // to memory of a device; null: through the host
};

// `options` are the others. What opening has found wrong goes to standard error.
Result<std::unique_ptr<Store>> open_store(const StorePlace& place, StoreOptions options);

}  // namespace kvlane
