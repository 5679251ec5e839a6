// Conversions of 16-bit floats, exhaustively against arithmetic that shares nothing with them.
// SPDX-License-Identifier: Apache-2.0
#include "base/bf16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlane {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
bf16 bf16_of(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }
fp16 fp16_of(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }

// The value of a 16-bit float with this many mantissa bits, from its definition. Not for NaN.
double value_of(std::uint32_t bits, int mantissa_bits, int bias) {
  const int exponent_max = (1 << (15 - mantissa_bits)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & exponent_max;
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == exponent_max) return sign * std::numeric_limits<double>::infinity();
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
}

bool is_nan(std::uint32_t bits, int mantissa_bits) {
  return (bits & 0x7FFFU) > (0x7FFFU >> mantissa_bits << mantissa_bits);
}

TEST(Fp16, AllPatternsConvertExactly) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(fp16{static_cast<std::uint16_t>(bits)});
    EXPECT_EQ(std::signbit(x), (bits & 0x8000U) != 0) << bits;
    if (is_nan(bits, 10)) {
      EXPECT_TRUE(std::isnan(x)) << bits;
      EXPECT_EQ(bits_of(x) >> 13 & 0x3FFU, bits & 0x3FFU) << "payload of " << bits;
      EXPECT_EQ(bits_of(x) & 0x1FFFU, 0U);
    } else {
      EXPECT_EQ(static_cast<double>(x), value_of(bits, 10, 15)) << bits;
    }
  }
}

TEST(Fp16, AllPatternsComeBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const std::uint16_t back = to_fp16(to_float(fp16_of(bits))).bits;
    if (is_nan(bits, 10)) {
      EXPECT_EQ(back, (bits & 0x8000U) | 0x7E00U) << "NaN comes back as the quiet one";
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

// As for BF16 below. The greatest number's step would lead to 65536.
TEST(Fp16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (const std::uint32_t sign : {0x0000U, 0x8000U}) {
    for (std::uint32_t magnitude = 0; magnitude < 0x7C00U; ++magnitude) {
      const double low = value_of(magnitude, 10, 15);
      const double high = magnitude == 0x7BFFU ? 65536.0 : value_of(magnitude + 1, 10, 15);
      const auto middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(double{middle}, (low + high) / 2) << "floats hold all middles";
      const float signed_middle = sign == 0 ? middle : -middle;
      const float zero = 0;
      const float beyond = signed_middle * 2;
      const std::uint32_t below = sign | magnitude;
      ASSERT_EQ(to_fp16(std::nextafter(signed_middle, zero)).bits, below);
      ASSERT_EQ(to_fp16(signed_middle).bits, magnitude % 2 == 0 ? below : below + 1);
      ASSERT_EQ(to_fp16(std::nextafter(signed_middle, beyond)).bits, below + 1);
    }
  }
}

TEST(Fp16, OverflowGoesToInfinityAndNanStaysNan) {
  for (const float x : {65520.0F, 65536.0F, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_fp16(x).bits, 0x7C00) << x;
    EXPECT_EQ(to_fp16(-x).bits, 0xFC00) << x;
  }
  EXPECT_EQ(to_fp16(65519.0F).bits, 0x7BFF);
  for (const std::uint32_t bits : {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU}) {
    EXPECT_EQ(to_fp16(float_of(bits)).bits, 0x7E00) << bits;
    EXPECT_EQ(to_fp16(float_of(bits | 0x80000000U)).bits, 0xFE00) << bits;
  }
}

TEST(Fp16, ZerosKeepTheirSign) {
  EXPECT_EQ(to_fp16(0.0F).bits, 0x0000);
  EXPECT_EQ(to_fp16(-0.0F).bits, 0x8000);
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(to_fp16(-0x1p-26F).bits, 0x8000);
}

TEST(Bf16, AllPatternsConvertExactlyAndComeBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(bf16_of(bits));
    EXPECT_EQ(std::signbit(x), (bits & 0x8000U) != 0) << bits;
    if (is_nan(bits, 7)) {
      EXPECT_TRUE(std::isnan(x)) << bits;
      EXPECT_EQ(to_bf16(x).bits, bits | 0x40U) << "NaN comes back quiet, with its payload";
    } else {
      EXPECT_EQ(static_cast<double>(x), value_of(bits, 7, 127)) << bits;
      EXPECT_EQ(to_bf16(x).bits, bits);
    }
  }
}

// Between any two neighbours: just below the middle goes down, just above goes up, the middle
// itself to the even one. Holds for subnormals and up to the step from the greatest value to
// infinity.
TEST(Bf16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (const std::uint32_t sign : {0x0000U, 0x8000U}) {
    for (std::uint32_t magnitude = 0; magnitude < 0x7F80U; ++magnitude) {
      const std::uint32_t below = sign | magnitude;
      const std::uint32_t middle = below << 16 | 0x8000U;
      const std::uint32_t even = magnitude % 2 == 0 ? below : below + 1;
      ASSERT_EQ(to_bf16(float_of(middle - 1)).bits, below);
      ASSERT_EQ(to_bf16(float_of(middle)).bits, even);
      ASSERT_EQ(to_bf16(float_of(middle + 1)).bits, below + 1);
    }
  }
}

TEST(Bf16, OverflowGoesToInfinityAndNanStaysNan) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::lowest()).bits, 0xFF80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  // Payloads in the lower half only: cutting them off must not make an infinity of a NaN.
  for (const std::uint32_t bits :
       {0x7F800001U, 0x7F80FFFFU, 0xFF800001U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    const bf16 x = to_bf16(float_of(bits));
    EXPECT_TRUE(std::isnan(to_float(x))) << bits;
    EXPECT_EQ(x.bits >> 15, bits >> 31) << bits;
  }
}

TEST(Bf16, ZerosKeepTheirSign) {
  EXPECT_EQ(to_bf16(0.0F).bits, 0x0000);
  EXPECT_EQ(to_bf16(-0.0F).bits, 0x8000);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000);
}

}  // namespace
}  // namespace kvlane
