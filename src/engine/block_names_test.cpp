// Names as spec/block_name.md has them.
// SPDX-License-Identifier: Apache-2.0
#include "engine/block_names.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "crypto/sha256.h"

namespace kvlane {
namespace {

std::vector<std::int32_t> count_to(int end) {
  std::vector<std::int32_t> tokens(end);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

BlockName root(std::string_view format, std::string_view salt) {
  const auto made = BlockNames::root(ModelIdentity{}, format, salt);
  EXPECT_TRUE(made.ok());
  return *made;
}

// The same values stand in tests/test_spec_decoder.py, computed by the independent reader.
TEST(BlockNames, AreThoseOfTheSpecification) {
  EXPECT_EQ(to_hex(root("bf16", "")),
            "1e899ae4a72065a2eb4db14b16888a62a593f79d37950e073eb5d9e5d6514d32");
  EXPECT_EQ(to_hex(root("bf16", "tenant \xc3\xa9")),
            "aa1191223db41a634299b68bcff83b4faa431a63faab59cf4bbcc0c44a3d1b5f");
  BlockNames names(root("bf16", ""));
  ASSERT_TRUE(names.extend(count_to(150)).ok());
  ASSERT_EQ(names.all().size(), 2U);
  EXPECT_EQ(to_hex(names.all()[0]),
            "97d34ff21d6bc8f92761c59f1fe5d043aa51d3de58703430bf9386097f2016a6");
  EXPECT_EQ(to_hex(names.all()[1]),
            "54f1f8c3fdde23f2ab7ffb1ecfbf9252f436d165d2f933e4d263c5ab3cc92a68");
}

TEST(BlockNames, DoNotDependOnHowTheSequenceGrew) {
  BlockNames at_once(root("bf16", "s"));
  ASSERT_TRUE(at_once.extend(count_to(400)).ok());
  BlockNames stepwise(root("bf16", "s"));
  for (int tokens = 0; tokens <= 400; tokens += 7) {
    ASSERT_TRUE(stepwise.extend(count_to(tokens)).ok());
  }
  ASSERT_EQ(stepwise.all().size(), 6U);
  EXPECT_TRUE(std::equal(at_once.all().begin(), at_once.all().end(), stepwise.all().begin()));
}

TEST(BlockNames, DependOnEverythingBefore) {
  BlockNames one(root("bf16", ""));
  BlockNames other(root("bf16", ""));
  std::vector<std::int32_t> tokens = count_to(128);
  ASSERT_TRUE(one.extend(tokens).ok());
  tokens[3] = 4;
  ASSERT_TRUE(other.extend(tokens).ok());
  EXPECT_NE(one.all()[0], other.all()[0]);
  EXPECT_NE(one.all()[1], other.all()[1]);
  EXPECT_NE(root("bf16", ""), root("fp16", ""));
  EXPECT_NE(root("bf16", ""), root("bf16", "x"));
}

}  // namespace
}  // namespace kvlane
