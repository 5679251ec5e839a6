// Going on after an interruption.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_log.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/temporary_directory.h"

namespace kvlane {
namespace {

class EvalLogTest : public testing::Test {
 protected:
  EvalLog open(const std::string& subject = "model A") {
    auto log = EvalLog::open(file(), subject);
    EXPECT_TRUE(log.ok()) << log.status().message();
    return std::move(*log);
  }
  std::filesystem::path file() const { return directory_.path() / "eval.jsonl"; }
  void append(const std::string& text) { std::ofstream(file(), std::ios::app) << text; }

  TemporaryDirectory directory_;
};

TEST_F(EvalLogTest, GivesBackExactlyWhatWasAdded) {
  const std::vector<double> values = {1.0 / 3, 0, -1e-300, 12345678901234567.0};
  {
    EvalLog log = open();
    EXPECT_FALSE(log.find("a").has_value());
    ASSERT_TRUE(log.add("a|kivi:bits=2|0", values).ok());
    EXPECT_EQ(log.find("a|kivi:bits=2|0"), values);
  }
  EvalLog again = open();
  EXPECT_EQ(again.find("a|kivi:bits=2|0"), values);
  ASSERT_TRUE(again.add("b", std::vector<double>{2}).ok());
  EXPECT_EQ(open().find("b"), std::vector<double>{2});
  EXPECT_EQ(open().find("a|kivi:bits=2|0"), values);
}

TEST_F(EvalLogTest, DropsALineThatAnInterruptionCut) {
  ASSERT_TRUE(open().add("a", std::vector<double>{1}).ok());
  append("{\"key\":\"b\",\"val");
  EvalLog log = open();
  EXPECT_FALSE(log.find("b").has_value());
  ASSERT_TRUE(log.add("c", std::vector<double>{3}).ok());
  EXPECT_EQ(open().find("a"), std::vector<double>{1});
  EXPECT_EQ(open().find("c"), std::vector<double>{3});
}

TEST_F(EvalLogTest, RefusesTheLogOfSomethingElse) {
  ASSERT_TRUE(open().add("a", std::vector<double>{1}).ok());
  const auto other = EvalLog::open(file(), "model B");
  EXPECT_EQ(other.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(open().find("a"), std::vector<double>{1}) << "and leaves it alone";
}

TEST_F(EvalLogTest, RefusesFilesThatItDidNotWrite) {
  for (const char* text : {"hello\n", "[]\n", "{\"subject\":\"model A\"}\n{\"key\":1}\n",
                           "{\"subject\":\"model A\"}\n{\"key\":\"a\",\"values\":[null]}\n"}) {
    ASSERT_TRUE(write_file(file(), as_byte_view(std::string(text))).ok());
    EXPECT_EQ(EvalLog::open(file(), "model A").status().code(), Code::kCorrupt) << text;
  }
}

TEST_F(EvalLogTest, WithoutAFileNothingIsKept) {
  EvalLog log;
  EXPECT_TRUE(log.add("a", std::vector<double>{1}).ok());
  EXPECT_FALSE(log.find("a").has_value());
}

}  // namespace
}  // namespace kvlane
