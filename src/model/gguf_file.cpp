// One look at the directory.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_file.h"

#include <system_error>

namespace kvlane {

namespace fs = std::filesystem;

Result<std::optional<fs::path>> find_gguf(const fs::path& directory) {
  std::optional<fs::path> found;
  std::error_code error;
  if (fs::exists(directory / "config.json", error)) return found;
  fs::directory_iterator file(directory, error);
  for (; !error && file != fs::directory_iterator(); file.increment(error)) {
    if (file->path().extension() != ".gguf") continue;
    if (found) return unsupported(directory.string() + " has several .gguf files");
    found = file->path();
  }
  return found;
}

}  // namespace kvlane
