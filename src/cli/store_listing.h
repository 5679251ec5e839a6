// What `kvlane store ls` and `stat` show, for people and as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "store/catalogue.h"

namespace kvlane {

// Reads the catalogue of the store in `directories`, which another process may have open meanwhile.
// kNotFound when none of them has the catalogue.
Result<CatalogueContents> read_catalogue(const std::vector<std::filesystem::path>& directories);

// One line or one JSON object for each extent, the longest unused first.
void print_extents(const CatalogueContents& contents, bool json);

// Sums over all extents, and over those that are alike; one JSON object.
void print_sums(const CatalogueContents& contents, bool json);

// "ab54a98c... hidden layers 0-3": what an extent is called in messages.
std::string extent_title(const ExtentHead& head);

}  // namespace kvlane
