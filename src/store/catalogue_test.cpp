// Catalogues: what was committed is there, all of it or none; what is damaged is told from what is
// not.
// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <gmock/gmock.h>
#include <sqlite3.h>

#include <fstream>

#include "store/directories.h"
#include "store/stored_fixture.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;

class CatalogueTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "catalogue.sqlite"; }
  Catalogue create() const {
    auto made = Catalogue::create(path(), "0123", 2);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  Result<CatalogueContents> load() const {
    KVLANE_ASSIGN(Catalogue there, Catalogue::open(path(), Catalogue::Access::kRead));
    return there.load();
  }
  void run(const char* sql) const {
    sqlite3* database = nullptr;
    ASSERT_EQ(::sqlite3_open(path().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(::sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sql;
    ::sqlite3_close(database);
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::kMemory};
};

CatalogueExtent row(std::int64_t id, int block, std::uint64_t used) {
  return {.id = id, .segment = 3, .page = 7, .used = used, .head = hidden_head(block, 1, 2)};
}

// All of what it is made with, or it counts as damaged: empty tables would say that no segment is
// worth keeping.
TEST_F(CatalogueTest, OneThatIsMadeAnewHasEverythingOrNothing) {
  const CatalogueChanges all{.new_segments = {{3, 0}}, .added = {row(1, 10, 5), row(2, 11, 4)}};
  ASSERT_TRUE(Catalogue::create(path(), "0123", 1, all).ok());
  const auto contents = load();
  ASSERT_TRUE(contents.ok()) << contents.status().message();
  EXPECT_EQ(contents->segments.size(), 1U);
  EXPECT_EQ(contents->extents.size(), 2U);

  std::filesystem::remove(path());
  // The second row has the key of the first, so the last step but one fails.
  const CatalogueChanges torn{.new_segments = {{3, 0}}, .added = {row(1, 10, 5), row(2, 10, 4)}};
  EXPECT_FALSE(Catalogue::create(path(), "0123", 1, torn).ok());
  EXPECT_EQ(load().status().code(), Code::kCorrupt);
}

TEST_F(CatalogueTest, WhatWasCommittedIsThere) {
  {
    Catalogue catalogue = create();
    ASSERT_TRUE(catalogue
                    .commit({.new_segments = {{3, 0}, {4, 1}},
                             .added = {row(1, 10, 5), row(2, 11, 4), row(3, 12, 6)}})
                    .ok());
    ASSERT_TRUE(catalogue
                    .commit({.gone_segments = {4, 99},
                             .removed = {3, 99},
                             .moved = {{2, 8, 9}},
                             .uses = {{1, 1}}})
                    .ok());
    EXPECT_TRUE(catalogue.check().ok());
  }
  const auto contents = load();
  ASSERT_TRUE(contents.ok()) << contents.status().message();
  EXPECT_EQ(contents->identity, "0123");
  EXPECT_EQ(contents->directories, 2);
  ASSERT_EQ(contents->segments.size(), 1U);
  EXPECT_EQ(contents->segments[0].segment, 3U);
  ASSERT_EQ(contents->extents.size(), 2U);  // the longest unused first
  EXPECT_EQ(contents->extents[0].id, 1);
  EXPECT_EQ(contents->extents[0].head, hidden_head(10, 1, 2));
  EXPECT_EQ(contents->extents[0].page, 7U);
  EXPECT_EQ(contents->extents[1].segment, 8U);
  EXPECT_EQ(contents->extents[1].page, 9U);
  EXPECT_TRUE(contents->bad.empty());
}

TEST_F(CatalogueTest, ATransactionIsAllOrNothing) {
  Catalogue catalogue = create();
  ASSERT_TRUE(catalogue.commit({.added = {row(1, 10, 5)}}).ok());
  // The same block again: the row before it must not stay.
  EXPECT_FALSE(catalogue.commit({.removed = {1}, .added = {row(2, 11, 6), row(3, 11, 7)}}).ok());
  EXPECT_EQ(load()->extents.size(), 1U);
  // Removed and added in one.
  EXPECT_TRUE(catalogue.commit({.removed = {1}, .added = {row(4, 10, 8)}}).ok());
  EXPECT_EQ(load()->extents.front().id, 4);
}

TEST_F(CatalogueTest, DamagedRowsAreNamedAndOthersRead) {
  {
    Catalogue catalogue = create();
    ASSERT_TRUE(catalogue
                    .commit({.added = {row(1, 10, 1), row(2, 11, 2), row(3, 12, 3), row(4, 13, 4),
                                       row(5, 14, 5), row(6, 15, 6)}})
                    .ok());
  }
  run("UPDATE extents SET head = x'00' WHERE extent = 1;"
      "UPDATE extents SET head = zeroblob(length(head)) WHERE extent = 2;"
      "UPDATE extents SET pages = pages + 1 WHERE extent = 3;"
      "UPDATE extents SET name = zeroblob(32) WHERE extent = 4;"
      "UPDATE extents SET page = -1 WHERE extent = 5");
  const auto contents = load();
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(contents->bad, (std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  ASSERT_EQ(contents->extents.size(), 1U);
  EXPECT_EQ(contents->extents[0].id, 6);
}

TEST_F(CatalogueTest, OtherFilesAreRefused) {
  EXPECT_EQ(load().status().code(), Code::kNotFound);
  std::ofstream(path()) << std::string(8192, 'x');
  EXPECT_EQ(load().status().code(), Code::kCorrupt);
  std::filesystem::remove(path());
  run("CREATE TABLE theirs (x)");
  EXPECT_EQ(load().status().code(), Code::kCorrupt);
  EXPECT_THAT(load().status().message(), HasSubstr("no catalogue"));
  std::filesystem::remove(path());
  create();
  run("PRAGMA user_version = 2");
  EXPECT_EQ(load().status().code(), Code::kUnsupported);
  run("PRAGMA user_version = 1; DELETE FROM store");
  EXPECT_EQ(load().status().code(), Code::kCorrupt);
}

TEST(Directories, MarksComeBack) {
  TemporaryDirectory directory(TemporaryDirectory::Place::kMemory);
  const auto path = directory.path() / "new";
  EXPECT_FALSE(read_mark(path)->has_value());
  const std::string identity = *new_identity();
  ASSERT_TRUE(mark_directory(path, {identity, 12}).ok());
  const auto mark = read_mark(path);
  ASSERT_TRUE(mark.ok() && mark->has_value());
  EXPECT_EQ((*mark)->identity, identity);
  EXPECT_EQ((*mark)->number, 12);
  EXPECT_FALSE(require_empty(path).ok());
  EXPECT_NE(*new_identity(), identity);
}

TEST(Directories, OtherMarksAreCorrupt) {
  TemporaryDirectory directory(TemporaryDirectory::Place::kMemory);
  const std::string digits(32, 'a');
  for (const std::string& text :
       {std::string("x"), "kvlane store 2\n" + digits + "\n0\n", "kvlane store 1\n" + digits + "\n",
        "kvlane store 1\n" + digits + "\n\n", "kvlane store 1\n" + digits + "\n0",
        "kvlane store 1\n" + digits + "\n-1\n", "kvlane store 1\n" + digits.substr(1) + "A\n0\n",
        std::string(200, 'a')}) {
    std::ofstream(directory.path() / "kvlane-store") << text;
    EXPECT_FALSE(read_mark(directory.path()).ok()) << text;
  }
  EXPECT_FALSE(read_mark(directory.path() / "kvlane-store").ok());
}

TEST(Directories, OneHolderOfTheLock) {
  TemporaryDirectory directory(TemporaryDirectory::Place::kMemory);
  {
    const auto first = lock_directory(directory.path());
    ASSERT_TRUE(first.ok());
    const auto second = lock_directory(directory.path());
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), Code::kUnavailable);
    EXPECT_THAT(second.status().message(), HasSubstr("another process"));
  }
  EXPECT_TRUE(lock_directory(directory.path()).ok());
}

TEST(Directories, SegmentsHaveNames) {
  EXPECT_EQ(segment_file_name(7), "00000007.seg");
  EXPECT_EQ(segment_file_name(4000000000), "4000000000.seg");
  for (const std::uint32_t number : {0U, 7U, 99999999U, 4294967295U}) {
    EXPECT_EQ(segment_number(segment_file_name(number)), number);
  }
  for (const char* name : {"7.seg", "00000007.SEG", "0000000x.seg", ".seg", "000000007.seg",
                           "4294967296.seg", "-0000007.seg"}) {
    EXPECT_FALSE(segment_number(name)) << name;
  }
}

}  // namespace
}  // namespace kvlane
