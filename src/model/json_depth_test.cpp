// Nesting of JSON texts.
// SPDX-License-Identifier: Apache-2.0
#include "model/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlane {
namespace {

TEST(JsonDepth, CountsOpenBracketsOutsideStrings) {
  EXPECT_EQ(json_depth(""), 0);
  EXPECT_EQ(json_depth("7"), 0);
  EXPECT_EQ(json_depth("{}"), 1);
  EXPECT_EQ(json_depth(R"({"a": [1, [2]], "b": [[]]})"), 3);
  EXPECT_EQ(json_depth(R"(["[[[[", "\"[[[", "\\", [1]])"), 2);
  EXPECT_EQ(json_depth(std::string(1000, '[')), 1000);
  EXPECT_EQ(json_depth("]]]["), 0);
  EXPECT_EQ(json_depth("\"\\"), 0);
}

}  // namespace
}  // namespace kvlane
