// What keeping a share of a rotated model's dimensions means: for `kvlane inspect`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "kvlane/status.h"

namespace kvlane {

// Adds a member "zack" to `description`, the JSON object that describe_checkpoint_json() gave for
// the directory, if the directory has tables of format `zack`: for some shares the threshold and
// the mean widths of K and V, and with `steps` every threshold at which the share changes.
Status add_zack_rates(const std::filesystem::path& directory, bool steps, std::string& description);

}  // namespace kvlane
