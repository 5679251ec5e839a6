// What tests of the store share: a directory of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace kvlane {

class TemporaryDirectory {
 public:
  // `durable`: on a disk. Else in memory, where the system has that: hundreds of syncs take long.
  explicit TemporaryDirectory(bool durable = false) {
    const std::filesystem::path memory = "/dev/shm";
    const bool in_memory = !durable && std::filesystem::is_directory(memory);
    const auto parent = in_memory ? memory : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "kvlane-store-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvlane
