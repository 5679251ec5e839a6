// Directed rounding to fp16, against the order of all its numbers.
// SPDX-License-Identifier: Apache-2.0
#include "base/fp16_bounds.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlane {
namespace {

constexpr std::uint16_t kLargestFp16 = 0x7bff;

float fp16_value(unsigned bits) { return to_float(fp16{static_cast<std::uint16_t>(bits)}); }

TEST(Fp16Bounds, NumbersOfFp16StayWhatTheyAre) {
  for (unsigned bits = 0; bits <= kLargestFp16; ++bits) {
    ASSERT_EQ(fp16_not_above(fp16_value(bits)).bits, bits);
    ASSERT_EQ(fp16_not_below(fp16_value(bits)).bits, bits);
    if (bits > 0) {
      ASSERT_EQ(fp16_not_above(-fp16_value(bits)).bits, bits | 0x8000U);
    }
  }
}

TEST(Fp16Bounds, WhatLiesBetweenTwoGoesToTheOneBelowOrAbove) {
  for (unsigned bits = 0; bits < kLargestFp16; ++bits) {
    const float low = fp16_value(bits);
    const float high = fp16_value(bits + 1);
    for (const float x :
         {std::nextafter(low, high), low + (high - low) / 2, std::nextafter(high, low)}) {
      ASSERT_EQ(fp16_not_above(x).bits, bits) << x;
      ASSERT_EQ(fp16_not_below(x).bits, bits + 1) << x;
      ASSERT_EQ(fp16_not_above(-x).bits, (bits + 1) | 0x8000U) << x;
    }
  }
}

TEST(Fp16Bounds, ZerosBecomePlusZero) {
  EXPECT_EQ(fp16_not_above(-0.0F).bits, 0);
  EXPECT_EQ(fp16_not_above(0.0F).bits, 0);
  EXPECT_EQ(fp16_not_below(0.0F).bits, 0);
}

}  // namespace
}  // namespace kvlane
