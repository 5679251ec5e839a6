// What the system's errors are here.
// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvlane {
namespace {

// A full disk makes room for what comes; too few descriptors are no reason to.
TEST(Descriptor, ErrorsAreToldApart) {
  const std::pair<int, Code> expected[] = {
      {ENOSPC, Code::kExhausted},      {EDQUOT, Code::kExhausted}, {EMFILE, Code::kUnavailable},
      {ENFILE, Code::kUnavailable},    {ENOENT, Code::kNotFound},  {ENOTDIR, Code::kNotFound},
      {EACCES, Code::kInvalidArgument}};
  for (const auto& [error, code] : expected) {
    errno = error;
    EXPECT_EQ(errno_status("open", "x").code(), code) << error;
  }
}

}  // namespace
}  // namespace kvlane
