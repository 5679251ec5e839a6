// A catalogue made anew from the headers in the segments: what is left when the old one is damaged.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "store/catalogue.h"
#include "store/files.h"

namespace kvlane {

// The extents of all segments in `directories` (by number), the newest of those that would have
// layers in common. Parts are not read. Bytes that are no header are passed over; so are files that
// cannot be read.
Result<CatalogueContents> contents_from_segments(
    StoreFiles& files, const std::vector<std::filesystem::path>& directories);

}  // namespace kvlane
