// Stored hidden states: exact ones are exact, 8 bits are off by half a step, and bad bytes are
// refused.
// SPDX-License-Identifier: Apache-2.0
#include "model/hidden_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/test_results.h"
#include "model/expected_fixture.h"
#include "model/model.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using Values = HiddenFormat::Values;

constexpr int kHidden = 300;
constexpr int kHiddenRows = 5;

// Rows in their type's bytes, and what these stand for. Some values lie far out, one row is zero.
struct Rows {
  explicit Rows(ElementType type)
      : values(kHiddenRows * kHidden), bytes(values.size() * element_bytes(type)) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto index = static_cast<std::uint32_t>(i);
      values[i] =
          i / kHidden == 3 ? 0 : (i % 50 == 7 ? 20.0F : 1.0F) * tables_fixture::normal(1, index);
      if (type == ElementType::kF32) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
      } else {
        const bf16 narrow = to_bf16(values[i]);
        values[i] = to_float(narrow);
        std::memcpy(&bytes[2 * i], &narrow, 2);
      }
    }
  }

  std::vector<float> values;
  std::vector<std::byte> bytes;
};

float value_of(const std::vector<std::byte>& bytes, ElementType type, std::size_t i) {
  if (type == ElementType::kF32) {
    float value;
    std::memcpy(&value, &bytes[4 * i], 4);
    return value;
  }
  bf16 value;
  std::memcpy(&value, &bytes[2 * i], 2);
  return to_float(value);
}

std::vector<std::byte> stored(const HiddenFormat& format, ByteView rows) {
  std::vector<std::byte> bytes(kHiddenRows * format.stored_bytes());
  const Status status = format.encode(rows, kHiddenRows, bytes.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

TEST(HiddenRows, ExactOnesAreExact) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const HiddenFormat format(Values::kExact, type, kHidden);
    const Rows rows(type);
    const auto bytes = stored(format, rows.bytes);
    EXPECT_EQ(bytes.size(), kHiddenRows * kHidden * element_bytes(type));
    std::vector<std::byte> back(rows.bytes.size());
    ASSERT_TRUE(format.decode(bytes, kHiddenRows, back.data()).ok());
    EXPECT_EQ(back, rows.bytes);
  }
}

// Half a step, and the rounding of the result to its type: 2^-9 of it in BF16; and of the scale and
// of products in F32.
TEST(HiddenRows, EightBitsAreOffByHalfAStep) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const HiddenFormat format(Values::kInt8, type, kHidden);
    const Rows rows(type);
    const auto bytes = stored(format, rows.bytes);
    EXPECT_EQ(bytes.size(), kHiddenRows * (kHidden + 4U));
    std::vector<std::byte> back(rows.bytes.size());
    ASSERT_TRUE(format.decode(bytes, kHiddenRows, back.data()).ok());
    for (int row = 0; row < kHiddenRows; ++row) {
      const float* const values = &rows.values[std::size_t(row) * kHidden];
      float largest = 0;
      for (int i = 0; i < kHidden; ++i) largest = std::max(largest, std::abs(values[i]));
      const double rounding = type == ElementType::kBf16 ? 0x1p-9 : 0x1p-22;
      for (int i = 0; i < kHidden; ++i) {
        const double got = value_of(back, type, std::size_t(row) * kHidden + i);
        EXPECT_NEAR(got, values[i], largest / 254.0 + (rounding + 0x1p-22) * largest);
      }
    }
  }
}

TEST(HiddenRows, ARowIsStoredAloneAsAmongOthers) {
  const HiddenFormat format(Values::kInt8, ElementType::kBf16, kHidden);
  const Rows rows(ElementType::kBf16);
  const auto bytes = stored(format, rows.bytes);
  std::vector<std::byte> one(format.stored_bytes());
  const ByteView row = ByteView(rows.bytes).subspan(2 * format.row_bytes(), format.row_bytes());
  ASSERT_TRUE(format.encode(row, 1, one.data()).ok());
  EXPECT_EQ(0, std::memcmp(one.data(), &bytes[2 * format.stored_bytes()], one.size()));
}

TEST(HiddenRows, ValuesTooSmallForAScaleAreZero) {
  const HiddenFormat format(Values::kInt8, ElementType::kF32, 2);
  const float tiny[] = {std::numeric_limits<float>::denorm_min(), 0};
  std::vector<std::byte> bytes(format.stored_bytes());
  ASSERT_TRUE(format.encode(std::as_bytes(std::span(tiny)), 1, bytes.data()).ok());
  for (const std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0});
}

TEST(HiddenRows, RefusesWhatIsNotFinite) {
  const HiddenFormat format(Values::kInt8, ElementType::kBf16, kHidden);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Rows rows(ElementType::kBf16);
    const bf16 narrow = to_bf16(bad);
    std::memcpy(&rows.bytes[4 * format.row_bytes() + 20], &narrow, 2);
    std::vector<std::byte> bytes(kHiddenRows * format.stored_bytes());
    const Status status = format.encode(rows.bytes, kHiddenRows, bytes.data());
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), "row 4 of the hidden states is not finite and has no 8 bits");
  }
}

TEST(HiddenRows, RefusesBytesThatAreNoRows) {
  for (const Values values : {Values::kExact, Values::kInt8}) {
    const HiddenFormat format(values, ElementType::kBf16, kHidden);
    const auto bytes = stored(format, Rows(ElementType::kBf16).bytes);
    std::vector<std::byte> back(kHiddenRows * format.row_bytes());
    for (const std::size_t size : {std::size_t{0}, bytes.size() - 1}) {
      EXPECT_EQ(format.decode(ByteView(bytes).first(size), kHiddenRows, back.data()).code(),
                Code::kCorrupt);
    }
    std::vector<std::byte> longer = bytes;
    longer.push_back({});
    EXPECT_EQ(format.decode(longer, kHiddenRows, back.data()).code(), Code::kCorrupt);
    EXPECT_EQ(format.encode(back, kHiddenRows - 1, longer.data()).code(), Code::kInternal);
  }
  const HiddenFormat format(Values::kInt8, ElementType::kBf16, kHidden);
  for (const float scale : {-1.0F, -0.0F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    auto bytes = stored(format, Rows(ElementType::kBf16).bytes);
    std::memcpy(&bytes[format.stored_bytes()], &scale, 4);
    std::vector<std::byte> back(kHiddenRows * format.row_bytes());
    const Status status = format.decode(bytes, kHiddenRows, back.data());
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_EQ(status.message(), "stored row 1 of hidden states has no valid scale");
  }
}

TEST(HiddenRows, NamesAreParsed) {
  const auto model = take(Model::load(expected_fixture::kModels / "llama-mqa-f32", {}));
  for (const char* name : {"hidden", "hidden:int8"}) {
    const HiddenFormat format = take(HiddenFormat::parse(name, *model));
    EXPECT_EQ(format.name(), name);
    EXPECT_EQ(format.hidden(), 32);
    EXPECT_EQ(format.row_bytes(), 128U);
  }
  for (const char* name : {"", "hidden:", "hidden:int4", "bf16"}) {
    EXPECT_EQ(HiddenFormat::parse(name, *model).status().code(), Code::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace kvlane
