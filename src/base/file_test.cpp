// Files: what is there comes back, what is not or should not be there gives one clear sentence.
// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class File : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "kvlane-file-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path path(const char* name) const { return directory_ / name; }
  fs::path make(const char* name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

// Fails in the same words for the reader of text and for the mapping.
void expect_unreadable(const fs::path& path, Code code, const char* words) {
  const Result<std::string> text = read_text_file(path, 100);
  const Result<MappedFile> mapped = MappedFile::open(path);
  ASSERT_FALSE(text.ok());
  ASSERT_FALSE(mapped.ok());
  for (const Status& status : {text.status(), mapped.status()}) {
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(status.message(), HasSubstr(path.string()));
    EXPECT_THAT(status.message(), HasSubstr(words));
  }
}

TEST_F(File, MissingFilesAreNotFound) {
  expect_unreadable(path("nobody"), Code::kNotFound, "cannot open");
  make("file", "x");
  expect_unreadable(path("file") / "below", Code::kNotFound, "cannot open");
}

TEST_F(File, DirectoriesAndDevicesAreRefused) {
  expect_unreadable(directory_, Code::kInvalidArgument, "is not a regular file");
  expect_unreadable("/dev/null", Code::kInvalidArgument, "is not a regular file");
}

TEST_F(File, APipeWithoutAWriterIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), S_IRUSR | S_IWUSR), 0);
  expect_unreadable(path("pipe"), Code::kInvalidArgument, "is not a regular file");
}

TEST_F(File, TextComesBackWithEveryByte) {
  std::string text = "line\n";
  text += '\0';
  text += "\xFF\r\n";
  EXPECT_EQ(*read_text_file(make("text", text), text.size()), text);
  EXPECT_EQ(*read_text_file(make("empty", ""), 0), "");
}

TEST_F(File, TextAboveTheLimitIsRefused) {
  const Result<std::string> text = read_text_file(make("long", "12345"), 4);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(text.status().message(), HasSubstr("has 5 bytes, more than the limit of 4"));
}

TEST_F(File, AFileThatHidesItsSizeReadsAsEmptyNotForever) {
  // Files of /proc say they have 0 bytes. They are no input of ours; they must only do no harm.
  const Result<std::string> text = read_text_file("/proc/self/limits", 100);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "");
}

TEST_F(File, MappingShowsTheWholeFile) {
  const std::string text(10000, 'm');
  const Result<MappedFile> file = MappedFile::open(make("mapped", text));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(as_text(file->bytes()), text);
}

TEST_F(File, MappingOfAnEmptyFileIsEmpty) {
  const Result<MappedFile> file = MappedFile::open(make("empty", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  file->release(file->bytes());
}

TEST_F(File, MappingOfATruncatedFileHasWhatIsLeft) {
  const fs::path cut = make("cut", std::string(9000, 'c'));
  fs::resize_file(cut, 4097);
  const Result<MappedFile> file = MappedFile::open(cut);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(as_text(file->bytes()), std::string(4097, 'c'));
}

TEST_F(File, MappingOutlivesItsNameAndMoves) {
  const fs::path here = make("moved", "one");
  Result<MappedFile> opened = MappedFile::open(here);
  ASSERT_TRUE(opened.ok());
  MappedFile first = std::move(*opened);
  fs::remove(here);
  EXPECT_EQ(as_text(first.bytes()), "one");
  EXPECT_TRUE(opened->bytes().empty());
  Result<MappedFile> other = MappedFile::open(make("other", "two"));
  ASSERT_TRUE(other.ok());
  first = std::move(*other);
  EXPECT_EQ(as_text(first.bytes()), "two");
}

TEST_F(File, ReleasedPartsCanBeReadAgain) {
  std::string text(5 * 4096, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i / 1000);
  const Result<MappedFile> file = MappedFile::open(make("released", text));
  ASSERT_TRUE(file.ok());
  for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, text.size()},
                                     {100, 10000},
                                     {4096, 4096},
                                     {4097, 10},
                                     {text.size(), 0}}) {
    file->release(file->bytes().subspan(first, count));
    EXPECT_EQ(as_text(file->bytes()), text);
  }
}

TEST_F(File, WriteCreatesAndReplacesAndLeavesNothingBeside) {
  const fs::path target = path("written");
  ASSERT_TRUE(write_file(target, as_byte_view("first, longer")).ok());
  EXPECT_EQ(*read_text_file(target, 100), "first, longer");
  ASSERT_TRUE(write_file(target, as_byte_view("second")).ok());
  EXPECT_EQ(*read_text_file(target, 100), "second");
  ASSERT_TRUE(write_file(target, {}).ok());
  EXPECT_EQ(*read_text_file(target, 100), "");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(File, FailedWriteChangesNothing) {
  const Status no_directory = write_file(path("no") / "file", as_byte_view("x"));
  EXPECT_EQ(no_directory.code(), Code::kNotFound);
  EXPECT_THAT(no_directory.message(), HasSubstr("cannot create"));
  fs::create_directory(path("taken"));
  const Status taken = write_file(path("taken"), as_byte_view("x"));
  EXPECT_EQ(taken.code(), Code::kInvalidArgument);
  EXPECT_THAT(taken.message(), HasSubstr(path("taken").string()));
  EXPECT_EQ(entries(), 1U) << "the temporary file is gone";
}

TEST_F(File, WriteToAFullDeviceIsExhausted) {
  // /dev/full refuses every write; the temporary name beside the target leads to it.
  fs::create_symlink("/dev/full", path("target.partial"));
  const Status status = write_file(path("target"), as_byte_view("x"));
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_FALSE(fs::exists(path("target")));
}

}  // namespace
}  // namespace kvlane
