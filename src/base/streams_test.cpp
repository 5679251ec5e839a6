// Sources and sinks: reading at places and from pipes; files that are there when they are complete,
// and not before.
// SPDX-License-Identifier: Apache-2.0
#include "base/streams.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvlane_streams_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string text(const fs::path& path) const { return *read_text_file(path, 1000); }
  void write(const fs::path& path, std::string_view bytes) const {
    ASSERT_TRUE(write_file(path, as_byte_view(bytes)).ok());
  }

  fs::path folder_;
};

std::string read(ByteSource& source, std::uint64_t offset, std::size_t count) {
  std::string bytes(count, '\0');
  const auto there = source.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(there.ok()) << there.status().message();
  bytes.resize(*there);
  return bytes;
}

TEST_F(StreamsTest, RegularFilesAreReadAtAnyPlace) {
  write(folder_ / "a", "0123456789");
  auto file = InputFile::open(folder_ / "a");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->bytes(), 10U);
  EXPECT_EQ(read(*file, 7, 2), "78");
  EXPECT_EQ(read(*file, 0, 100), "0123456789");
  EXPECT_EQ(read(*file, 10, 1), "");
  EXPECT_EQ(read(*file, 1000, 1), "");
  write(folder_ / "empty", "");
  EXPECT_EQ(InputFile::open(folder_ / "empty")->bytes(), 0U);
}

TEST_F(StreamsTest, PipesAreReadToTheirEnd) {
  const fs::path path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), S_IRUSR | S_IWUSR), 0);
  std::thread writer([&] {
    std::ofstream out(path);
    out << "0123" << std::flush;
    out << "456789";
  });
  auto file = InputFile::open(path);
  writer.join();
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_FALSE(file->bytes());
  EXPECT_EQ(read(*file, 0, 6), "012345");
  EXPECT_EQ(read(*file, 6, 6), "6789");
}

TEST_F(StreamsTest, WhatCannotBeReadIsRefused) {
  EXPECT_EQ(InputFile::open(folder_ / "none").status().code(), Code::kNotFound);
  EXPECT_THAT(InputFile::open(folder_).status().message(), HasSubstr("is a directory"));
}

TEST_F(StreamsTest, MemoryEndsWhereItEnds) {
  MemorySource source(as_byte_view("0123456789"));
  EXPECT_EQ(source.bytes(), 10U);
  EXPECT_EQ(read(source, 8, 5), "89");
  EXPECT_EQ(read(source, 10, 5), "");
  EXPECT_EQ(read(source, UINT64_MAX, 5), "");
}

TEST_F(StreamsTest, AFileHasItsNameOnlyWhenItIsComplete) {
  {
    auto file = OutputFile::create(folder_ / "a", false);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->write_at(4, as_byte_view("5678")).ok());
    EXPECT_EQ(names().size(), 1U);
    EXPECT_THAT(names()[0], ::testing::MatchesRegex("a\\.......\\.partial"));
    ASSERT_TRUE(file->write_at(0, as_byte_view("1234")).ok());
    ASSERT_TRUE(file->commit().ok());
  }
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_EQ(text(folder_ / "a"), "12345678");
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "a").c_str(), &info), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(info.st_mode & 0777U, 0666U & ~mask);
}

TEST_F(StreamsTest, WithoutCommitNothingIsLeft) {
  {
    auto file = OutputFile::create(folder_ / "a", false);
    ASSERT_TRUE(file.ok());
    const OutputFile moved = std::move(*file);
    EXPECT_EQ(names().size(), 1U);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(StreamsTest, FilesThatAreThereStay) {
  write(folder_ / "a", "old");
  const auto refused = OutputFile::create(folder_ / "a", false);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("is there already"));
  {
    auto file = OutputFile::create(folder_ / "a", true);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write_at(0, as_byte_view("new")).ok());
    EXPECT_EQ(text(folder_ / "a"), "old");
    ASSERT_TRUE(file->commit().ok());
  }
  EXPECT_EQ(text(folder_ / "a"), "new");

  // Somebody else was faster.
  auto late = OutputFile::create(folder_ / "b", false);
  ASSERT_TRUE(late.ok());
  write(folder_ / "b", "theirs");
  EXPECT_THAT(late->commit().message(), HasSubstr("is there already"));
  EXPECT_EQ(text(folder_ / "b"), "theirs");
}

TEST_F(StreamsTest, WhatCannotBeWrittenIsRefused) {
  EXPECT_EQ(OutputFile::create(folder_ / "no" / "a", false).status().code(), Code::kNotFound);
  EXPECT_THAT(OutputFile::create(folder_, true).status().message(), HasSubstr("is a directory"));
  EXPECT_THAT(OutputFile::create("/dev/null", true).status().message(),
              HasSubstr("no regular file"));
}

}  // namespace
}  // namespace kvlane
