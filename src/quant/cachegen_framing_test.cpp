// Sizes of the public code's chunks: the parts that do not depend on values, and the entropy of
// those that do.
// SPDX-License-Identifier: Apache-2.0
#include "quant/cachegen_framing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "quant/cachegen_symbols.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using tables_fixture::normal;

std::vector<std::uint16_t> draw(std::size_t tokens, std::size_t channels) {
  std::vector<std::uint16_t> rows(tokens * channels);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] =
        to_bf16(normal(9, static_cast<std::uint32_t>(i)) * (1 + float(i % channels % 4))).bits;
  }
  return rows;
}

// Models alone cost 2.06 bits a value in chunks of 256 tokens, 0.52 at 1024, 0.35 at 1500; lengths
// 0.125 each.
TEST(CachegenFraming, MetadataIsLarge) {
  constexpr int kChannels = 64;
  for (const std::size_t tokens : {256, 1024, 1500}) {
    const auto framing = measure_cachegen_framing(draw(tokens, kChannels), kChannels, 32);
    EXPECT_EQ(framing.values, tokens * kChannels);
    EXPECT_EQ(framing.model_bytes, 66U * kChannels);
    EXPECT_EQ(framing.length_bytes, 4U * kChannels * ((tokens + 255) / 256));
    EXPECT_EQ(framing.scale_bytes, 2 * tokens);
    EXPECT_NEAR(8.0 * double(framing.model_bytes) / double(framing.values), 528.0 / double(tokens),
                1e-9);
    EXPECT_NEAR(framing.bits_per_value() * double(framing.values) / 8, double(framing.bytes()), 1);
  }
}

TEST(CachegenFraming, StreamsTakeTheEntropyOfTheChunk) {
  constexpr std::size_t kChannels = 16;
  constexpr std::size_t kTokens = 1000;
  const auto rows = draw(kTokens, kChannels);
  for (const int bins : cachegen::kBins) {
    const int middle = cachegen::middle_of(bins);
    double bytes = 0;
    std::vector<std::map<int, double>> counts(kChannels);
    for (std::size_t token = 0; token < kTokens; ++token) {
      double largest = 0;
      for (std::size_t c = 0; c < kChannels; ++c) {
        largest = std::max<double>(largest, std::abs(to_float(bf16{rows[token * kChannels + c]})));
      }
      for (std::size_t c = 0; c < kChannels; ++c) {
        const double x = to_float(bf16{rows[token * kChannels + c]});
        ++counts[c][static_cast<int>(std::nearbyint(x * middle / largest))];
      }
    }
    for (const auto& channel : counts) {
      for (const auto& [symbol, count] : channel) bytes -= count * std::log2(count / kTokens) / 8;
    }
    const auto framing = measure_cachegen_framing(rows, kChannels, bins);
    EXPECT_GT(static_cast<double>(framing.stream_bytes), bytes - 1);
    EXPECT_LT(static_cast<double>(framing.stream_bytes), 1.01 * bytes + 2.0 * 4 * kChannels);
  }
}

TEST(CachegenFraming, AddsUp) {
  EXPECT_EQ(measure_cachegen_framing({}, 8, 16).bytes(), 0U);
  EXPECT_EQ(CachegenFraming{}.bits_per_value(), 0);
  CachegenFraming sum = measure_cachegen_framing(draw(10, 8), 8, 16);
  const std::uint64_t first = sum.bytes();
  const CachegenFraming other = measure_cachegen_framing(draw(300, 8), 8, 12);
  sum += other;
  EXPECT_EQ(sum.bytes(), first + other.bytes());
  EXPECT_EQ(sum.values, 310U * 8);
}

}  // namespace
}  // namespace kvlane
