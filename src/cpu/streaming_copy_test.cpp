// streaming_copy() against the bytes it was given, at every place within a line.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvlane {
namespace {

constexpr std::size_t kRoom = 1024;

std::vector<std::byte> numbered() {
  std::vector<std::byte> bytes(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 256);
  return bytes;
}

TEST(StreamingCopy, CopiesAnyLengthToAndFromAnyPlace) {
  const std::vector<std::byte> source = numbered();
  for (std::size_t to = 0; to < 70; ++to) {
    for (const std::size_t from : {0, 1, 16, 63}) {
      for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 512, 700}) {
        std::vector<std::byte> target(kRoom, std::byte{0xEE});
        streaming_copy(target.data() + to, source.data() + from, bytes);
        ASSERT_TRUE(
            std::equal(source.begin() + from, source.begin() + from + bytes, target.begin() + to))
            << bytes << " bytes from " << from << " to " << to;
        const auto untouched = [](std::byte b) { return b == std::byte{0xEE}; };
        ASSERT_TRUE(std::all_of(target.begin(), target.begin() + to, untouched) &&
                    std::all_of(target.begin() + to + bytes, target.end(), untouched))
            << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace kvlane
