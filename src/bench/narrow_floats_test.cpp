// Rounding against every value of the narrow types and every midpoint between two of them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/narrow_floats.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

// The value of a finite code without its sign, by the definition.
float value_of(NarrowFloat type, std::uint32_t code) {
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> type.mantissa_bits);
  const std::uint32_t mantissa = code & ((1U << type.mantissa_bits) - 1);
  const std::uint32_t whole = exponent == 0 ? mantissa : mantissa | 1U << type.mantissa_bits;
  return std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - type.mantissa_bits);
}

class NarrowFloats : public testing::TestWithParam<ElementType> {};

TEST_P(NarrowFloats, EveryValueIsItself) {
  const NarrowFloat type = narrow_float(GetParam());
  const std::uint32_t sign = 1U << (type.exponent_bits + type.mantissa_bits);
  for (std::uint32_t code = 0; code <= type.largest; ++code) {
    ASSERT_EQ(to_narrow(type, value_of(type, code)), code);
    ASSERT_EQ(to_narrow(type, -value_of(type, code)), code | sign);
  }
}

TEST_P(NarrowFloats, BetweenTwoTheNearerAndInTheMiddleTheEven) {
  const NarrowFloat type = narrow_float(GetParam());
  for (std::uint32_t code = 0; code < type.largest; ++code) {
    const float middle = (value_of(type, code) + value_of(type, code + 1)) / 2;
    ASSERT_EQ(to_narrow(type, middle), code + code % 2);
    ASSERT_EQ(to_narrow(type, std::nextafter(middle, 0.0F)), code);
    ASSERT_EQ(to_narrow(type, std::nextafter(middle, 1e9F)), code + 1);
  }
}

TEST_P(NarrowFloats, WhatIsTooLargeIsTheLargest) {
  const NarrowFloat type = narrow_float(GetParam());
  EXPECT_EQ(to_narrow(type, 1e9F), type.largest);
  EXPECT_EQ(to_narrow(type, 3e38F), type.largest);
  EXPECT_EQ(to_narrow(type, std::numeric_limits<float>::infinity()), type.largest);
}

TEST(NarrowFloats, LargestValues) {
  EXPECT_EQ(value_of(narrow_float(ElementType::kFp16), 0x7BFF), 65504);
  EXPECT_EQ(value_of(narrow_float(ElementType::kFp8E4m3), 0x7E), 448);
  EXPECT_EQ(value_of(narrow_float(ElementType::kFp8E5m2), 0x7B), 57344);
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowFloats,
                         testing::Values(ElementType::kFp16, ElementType::kFp8E4m3,
                                         ElementType::kFp8E5m2));

}  // namespace
}  // namespace kvlane
