// Ratios and escapes of planes whose sizes are known, and yardsticks there and back.
// SPDX-License-Identifier: Apache-2.0
#include "bench/coders.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "bench/byte_split.h"
#include "bench/yardsticks.h"

namespace kvlane {
namespace {

// Values around 1 of both signs; exponents as in a trained model's K.
std::vector<std::uint16_t> smooth_values(std::size_t count) {
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(i);
    values[i] = to_bf16(static_cast<float>(std::sin(x * 1.7) * std::exp(std::sin(x)))).bits;
  }
  return values;
}

// A plane of n bytes becomes n / divisor bytes, of which decoding makes the plane again, or not.
Coder fake_coder(std::size_t divisor, bool right) {
  return {.name = "fake",
          .bound = [](const PlaneShape& shape) { return shape.bytes(); },
          .encode = [divisor](const PlaneShape&, ByteView plane, const Codebook*,
                              std::span<std::byte>) { return plane.size() / divisor; },
          .decode =
              [right](const PlaneShape&, ByteView, std::span<std::byte> to) {
                std::ranges::fill(to, right ? std::byte{7} : std::byte{8});
                return Status();
              }};
}

TEST(CodedRatio, IsOfAllLayersAndOfTheWorst) {
  const Bytes plane(128, std::byte{7});
  const PlaneShape shape{.kv_heads = 1, .rows = 1, .head_dim = 64};
  const LayerPlanes small{shape, {plane}, {}};
  const LayerPlanes large{shape, {plane, plane, plane}, {}};
  Coder coder = fake_coder(2, true);
  // The second layer's planes become half as large, the first one's stay.
  int calls = 0;
  coder.encode = [&](const PlaneShape&, ByteView values, const Codebook*, std::span<std::byte>) {
    return values.size() / (calls++ == 0 ? 1 : 2);
  };
  const LayerPlanes layers[] = {small, large};
  const auto ratio = coded_ratio(coder, layers);
  ASSERT_TRUE(ratio.ok());
  EXPECT_DOUBLE_EQ(ratio->all, 512.0 / (128 + 192));
  EXPECT_DOUBLE_EQ(ratio->least, 1);
}

TEST(CodedRatio, FailsWhenAPlaneDoesNotComeBack) {
  const Bytes plane(128, std::byte{7});
  const LayerPlanes layer{{.kv_heads = 1, .rows = 1, .head_dim = 64}, {plane}, {}};
  EXPECT_TRUE(coded_ratio(fake_coder(2, true), {&layer, 1}).ok());
  EXPECT_EQ(coded_ratio(fake_coder(2, false), {&layer, 1}).status().code(), Code::kInternal);
}

TEST(EscapeShare, CountsWhatTheCodebookLacks) {
  // Exponents 127, 127, 128, 0 in one layer, 127 four times in the other.
  const std::vector<std::uint16_t> mixed = {0x3F80, 0xBF80, 0x4000, 0x0000};
  const std::vector<std::uint16_t> alike(4, 0x3FC0);
  const PlaneShape shape{.kv_heads = 1, .rows = 1, .head_dim = 4};
  Codebook book;
  for (std::size_t i = 0; i < book.exponents.size(); ++i) {
    book.exponents[i] = static_cast<std::uint8_t>(112 + i);
  }
  const LayerPlanes layers[] = {{shape, {std::as_bytes(std::span(mixed))}, book},
                                {shape, {std::as_bytes(std::span(alike))}, book}};
  EXPECT_DOUBLE_EQ(escape_share(layers), 2.0 / 8);
}

TEST(Coders, CarryTheNamesOfFigures) {
  const auto codec = find_codec("splitzip:channel");
  ASSERT_TRUE(codec.ok());
  EXPECT_EQ(coder_of(**codec).name, "splitzip_channel");
  EXPECT_EQ(counting_coder_of(**find_codec("splitzip")).name, "splitzip_counted");
}

TEST(ByteSplit, PutsExponentsAndTheRestApart) {
  const std::vector<std::uint16_t> values = {0x3F80, 0xC000, 0x0001, 0xFFFF};
  std::byte exponents[4];
  std::byte rests[4];
  split_bytes(std::as_bytes(std::span(values)), exponents, rests);
  const std::uint8_t expected_exponents[] = {127, 128, 0, 255};
  const std::uint8_t expected_rests[] = {0x00, 0x01, 0x02, 0xFF};
  EXPECT_EQ(std::memcmp(exponents, expected_exponents, 4), 0);
  EXPECT_EQ(std::memcmp(rests, expected_rests, 4), 0);
  std::vector<std::uint16_t> back(4);
  join_bytes(exponents, rests, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, values);
}

class Yardsticks : public testing::TestWithParam<std::size_t> {};

TEST_P(Yardsticks, GiveEveryPlaneBack) {
  Coder coder = yardsticks()[GetParam()];
  std::vector<std::uint16_t> every(1 << 16);
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);
  for (const auto& values :
       {smooth_values(100'003), smooth_values(1), every, std::vector<std::uint16_t>(5000, 0)}) {
    const LayerPlanes layer{{.kv_heads = 1, .rows = 1, .head_dim = static_cast<int>(values.size())},
                            {std::as_bytes(std::span(values))},
                            {}};
    const auto ratio = coded_ratio(coder, {&layer, 1});
    ASSERT_TRUE(ratio.ok()) << coder.name << ": " << ratio.status().message();
  }
}

TEST_P(Yardsticks, CompressWhatIsRegular) {
  const Coder coder = yardsticks()[GetParam()];
  const std::vector<std::uint16_t> alike(100'000, 0x3F80);
  const LayerPlanes layer{
      {.kv_heads = 1, .rows = 1, .head_dim = 100'000}, {std::as_bytes(std::span(alike))}, {}};
  EXPECT_GT(coded_ratio(coder, {&layer, 1})->all, 1.9) << coder.name;
}

INSTANTIATE_TEST_SUITE_P(All, Yardsticks, testing::Range(std::size_t{0}, yardsticks().size()),
                         [](const auto& tested) { return yardsticks()[tested.param].name; });

TEST(Yardsticks, ByteSplitHuffmanCodesExponentsWithoutMatches) {
  // Two exponents at random: 1 bit each, so 9 of 16 bits; nothing that a match could find.
  std::vector<std::uint16_t> values(1 << 18);
  std::uint64_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<std::uint16_t>((state >> 63 ? 0x3F80U : 0x4000U) | (state >> 40 & 0x807FU));
  }
  const LayerPlanes layer{
      {.kv_heads = 1, .rows = 1, .head_dim = 1 << 18}, {std::as_bytes(std::span(values))}, {}};
  for (const Coder& coder : yardsticks()) {
    if (coder.name != "bytesplit_huffman") continue;
    EXPECT_NEAR(coded_ratio(coder, {&layer, 1})->all, 16.0 / 9, 0.01);
  }
}

}  // namespace
}  // namespace kvlane
