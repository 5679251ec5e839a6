// Philox4x32-10 against its authors' known answers, and the uniform numbers made from it.
// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace kvlane {
namespace {

// From the known-answer vectors that come with Random123 (Salmon et al., SC'11), "philox4x32 10".
TEST(Philox, KnownAnswers) {
  static_assert(philox4x32(0, {}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  EXPECT_EQ(philox4x32(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // The digits of pi. The key's words are a4093822, 299f31d0; the first is the low half.
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryWordOfKeyAndCounterCounts) {
  std::set<PhiloxCounter> seen{philox4x32(0, {})};
  for (std::size_t word = 0; word < 4; ++word) {
    PhiloxCounter counter{};
    counter[word] = 1;
    EXPECT_TRUE(seen.insert(philox4x32(0, counter)).second) << word;
  }
  EXPECT_TRUE(seen.insert(philox4x32(1, {})).second);
  EXPECT_TRUE(seen.insert(philox4x32(std::uint64_t{1} << 32, {})).second);
}

TEST(UniformUnit, LiesInTheHalfOpenIntervalAndUsesAllOfItsBits) {
  EXPECT_EQ(uniform_unit(0, 0), 0.0);
  EXPECT_EQ(uniform_unit(0x80000000, 0), 0.5);
  EXPECT_EQ(uniform_unit(0xffffffff, 0xffffffff), 1.0 - 0x1p-53);
  EXPECT_EQ(uniform_unit(0, 1U << 11), 0x1p-53);
  EXPECT_EQ(uniform_unit(0, (1U << 11) - 1), 0.0);
}

TEST(UniformUnit, MeanAndVarianceAreThoseOfTheUniformDistribution) {
  constexpr std::uint32_t kCount = 100000;
  double sum = 0;
  double squares = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const PhiloxCounter words = philox4x32(42, {i});
    const double x = uniform_unit(words[0], words[1]);
    sum += x;
    squares += (x - 0.5) * (x - 0.5);
  }
  // Four standard deviations of each estimate: sqrt(1/12/n), and sqrt((1/80 - 1/144)/n).
  EXPECT_NEAR(sum / kCount, 0.5, 4 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 12, 4 * std::sqrt((1.0 / 80 - 1.0 / 144) / kCount));
}

}  // namespace
}  // namespace kvlane
