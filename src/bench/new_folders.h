// Directories for what a benchmark writes, which do not outlive it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/descriptor.h"
#include "kvlane/status.h"

namespace kvlane {

// New directories, one in each of those given, that are gone with this object.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders() {
    std::error_code ignored;
    for (const std::filesystem::path& path : paths_) std::filesystem::remove_all(path, ignored);
  }

  Status make(const std::vector<std::filesystem::path>& directories) {
    for (const std::filesystem::path& directory : directories) {
      std::string path = (directory / "kvlane-bench-XXXXXX").string();
      if (::mkdtemp(path.data()) == nullptr) return errno_status("make a directory in", directory);
      paths_.emplace_back(path);
    }
    return {};
  }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

 private:
  std::vector<std::filesystem::path> paths_;
};

}  // namespace kvlane
