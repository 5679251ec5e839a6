// Directed rounding to bf16, against the order of all its numbers.
// SPDX-License-Identifier: Apache-2.0
#include "base/bf16_bounds.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlane {
namespace {

constexpr std::uint16_t kLargestBf16 = 0x7f7f;

float bf16_value(unsigned bits) { return to_float(bf16{static_cast<std::uint16_t>(bits)}); }

TEST(Bf16Bounds, NumbersOfBf16StayWhatTheyAre) {
  for (unsigned bits = 0; bits <= kLargestBf16; ++bits) {
    ASSERT_EQ(bf16_not_above(bf16_value(bits)).bits, bits);
    ASSERT_EQ(bf16_not_below(bf16_value(bits)).bits, bits);
    if (bits > 0) {
      ASSERT_EQ(bf16_not_above(-bf16_value(bits)).bits, bits | 0x8000U);
    }
  }
}

TEST(Bf16Bounds, WhatLiesBetweenTwoGoesToTheOneBelowOrAbove) {
  for (unsigned bits = 0; bits < kLargestBf16; ++bits) {
    const float low = bf16_value(bits);
    const float high = bf16_value(bits + 1);
    for (const float x :
         {std::nextafter(low, high), low + (high - low) / 2, std::nextafter(high, low)}) {
      ASSERT_EQ(bf16_not_above(x).bits, bits) << x;
      ASSERT_EQ(bf16_not_below(x).bits, bits + 1) << x;
      ASSERT_EQ(bf16_not_above(-x).bits, (bits + 1) | 0x8000U) << x;
    }
  }
}

TEST(Bf16Bounds, ZerosBecomePlusZero) {
  EXPECT_EQ(bf16_not_above(-0.0F).bits, 0);
  EXPECT_EQ(bf16_not_above(0.0F).bits, 0);
  EXPECT_EQ(bf16_not_below(0.0F).bits, 0);
}

}  // namespace
}  // namespace kvlane
