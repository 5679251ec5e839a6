// Which file of a directory is a model in GGUF.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "kvlane/status.h"

namespace kvlane {

// The .gguf file of a directory without config.json; nullopt where there is a config.json or no
// such file. kUnsupported for several: they are parts of a model, or several models.
Result<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& directory);

}  // namespace kvlane
