// UCX's library where it is not what the program asks for.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UcxLibrary, WithoutItWhatToInstallIsTold) {
  const Status missing = load_ucx_library("libnowhere.so.0").status();
  EXPECT_EQ(missing.code(), Code::kUnavailable);
  EXPECT_THAT(missing.message(),
              AllOf(HasSubstr("libnowhere.so.0 cannot be loaded"), HasSubstr("libucx0")));
}

TEST(UcxLibrary, WhatItLacksIsNamed) {
  const Status other = load_ucx_library("libc.so.6").status();
  EXPECT_EQ(other.code(), Code::kUnavailable);
  EXPECT_THAT(other.message(), HasSubstr("libc.so.6 has no uc"));
}

}  // namespace
}  // namespace kvlane
