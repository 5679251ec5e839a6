// The files of tests/fixtures/gguf, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/test_paths.h"

namespace kvlane::gguf_fixture {

inline const std::filesystem::path kFixtures =
    std::filesystem::path(kSourceDir) / "tests" / "fixtures";
inline const std::filesystem::path kFiles = kFixtures / "gguf";

inline std::string read_gguf(const std::string& name) {
  const Result<std::string> bytes = read_text_file(kFiles / (name + ".gguf"), 1U << 20);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? *bytes : std::string();
}

// A directory of the test's own, with no files or with this one alone.
class GgufDirectory {
 public:
  GgufDirectory()
      : path_(testing::TempDir() + "kvlane_gguf_" +
              testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
              std::to_string(made_++)) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  explicit GgufDirectory(const std::string& bytes) : GgufDirectory() { add("model.gguf", bytes); }
  ~GgufDirectory() { std::filesystem::remove_all(path_); }
  GgufDirectory(const GgufDirectory&) = delete;
  GgufDirectory& operator=(const GgufDirectory&) = delete;

  void add(const std::string& name, const std::string& bytes) const {
    EXPECT_TRUE(write_file(path_ / name, as_byte_view(bytes)).ok());
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  inline static int made_ = 0;
  std::filesystem::path path_;
};

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace kvlane::gguf_fixture
