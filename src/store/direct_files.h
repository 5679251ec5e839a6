// Files whose bytes can also go to memory of a device, past the host's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "gpu/direct_storage.h"
#include "store/files.h"

namespace kvlane {

// Passes requests on, but for reads to memory of a device. Files that cannot be read there
// directly, or turn out not to be when they are first, say so: reads_to_device(). `options`:
// devices and depth.
std::unique_ptr<StoreFiles> direct_files(std::unique_ptr<StoreFiles> files,
                                         std::shared_ptr<gpu::DirectStorage> storage,
                                         const FileOptions& options);

}  // namespace kvlane
