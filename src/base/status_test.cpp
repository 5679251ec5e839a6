// Status, Result and the two macros that pass errors on.
// SPDX-License-Identifier: Apache-2.0
#include "kvlane/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace kvlane {
namespace {

TEST(Status, SuccessIsTheDefaultAndHasNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(status.with_context("anything").ok());
}

TEST(Status, EachConstructorGivesItsCodeAndEachCodeItsOwnName) {
  const std::pair<Status, const char*> cases[] = {
      {invalid_argument("m"), "invalid_argument"},
      {not_found("m"), "not_found"},
      {corrupt("m"), "corrupt"},
      {unsupported("m"), "unsupported"},
      {exhausted("m"), "exhausted"},
      {unavailable("m"), "unavailable"},
      {timed_out("m"), "timeout"},
      {aborted("m"), "aborted"},
      {internal_error("m"), "internal"},
  };
  std::set<Code> codes{Code::kOk};
  EXPECT_EQ(code_name(Code::kOk), "ok");
  for (const auto& [status, name] : cases) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(code_name(status.code()), name);
    EXPECT_EQ(status.message(), "m");
    EXPECT_TRUE(codes.insert(status.code()).second) << name;
  }
}

TEST(Status, ContextGoesBeforeTheMessage) {
  const Status status = corrupt("bad magic").with_context("frame 3").with_context("a.bin");
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(), "a.bin: frame 3: bad magic");
}

TEST(Result, HoldsAValueOrAStatus) {
  const Result<std::string> value = std::string("here");
  EXPECT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(*value, "here");
  EXPECT_EQ(value->size(), 4U);
  const Result<std::string> none = not_found("gone");
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status().message(), "gone");
}

TEST(Result, CarriesWhatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  const std::unique_ptr<int> owned = std::move(*result);
  EXPECT_EQ(*owned, 7);
}

TEST(StatusMacros, TryReturnsTheFirstErrorAndEvaluatesOnce) {
  int calls = 0;
  const auto step = [&](bool good) {
    ++calls;
    return good ? Status() : aborted("step " + std::to_string(calls));
  };
  const auto run = [&](bool second_is_good) -> Status {
    KVLANE_TRY(step(true));
    KVLANE_TRY(step(second_is_good));
    return invalid_argument("reached the end");
  };
  EXPECT_EQ(run(true).message(), "reached the end");
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(run(false).message(), "step 4");
  EXPECT_EQ(calls, 4);
}

TEST(StatusMacros, AssignDeclaresAssignsAndPassesErrorsOn) {
  int calls = 0;
  const auto half = [&](int x) -> Result<int> {
    ++calls;
    if (x % 2 != 0) return invalid_argument(std::to_string(x) + " is odd");
    return x / 2;
  };
  // Two uses in one scope, in a function that returns a Result of another type.
  const auto quarter = [&](int x) -> Result<std::string> {
    KVLANE_ASSIGN(int y, half(x));
    KVLANE_ASSIGN(y, half(y));
    return std::to_string(y);
  };
  EXPECT_EQ(*quarter(12), "3");
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(quarter(5).status().message(), "5 is odd");
  EXPECT_EQ(calls, 5);
}

TEST(StatusMacros, AssignMovesOutOfTheResult) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(3); };
  const auto use = [&]() -> Result<int> {
    KVLANE_ASSIGN(const std::unique_ptr<int> owned, make());
    return *owned;
  };
  EXPECT_EQ(*use(), 3);
}

}  // namespace
}  // namespace kvlane
