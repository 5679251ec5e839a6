// Ranks against a search that tries every threshold, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "base/random.h"

namespace kvlane::zack {
namespace {

struct HeadSpectra {
  int head_dim;
  std::size_t heads;
  std::vector<float> k, v;

  HeadSpectra(int dim, std::size_t count, std::uint64_t seed)
      : head_dim(dim), heads(count), k(spectra(seed)), v(spectra(seed + 1)) {}

  Spectra view() const { return {head_dim, k, v}; }
  std::span<const float> plane(std::size_t i) const {
    const std::vector<float>& of = i % 2 == 0 ? k : v;
    return std::span(of).subspan(i / 2 * head_dim, head_dim);
  }

 private:
  // Falling at a pace of each head's own.
  std::vector<float> spectra(std::uint64_t seed) const {
    std::vector<float> all;
    for (std::size_t head = 0; head < heads; ++head) {
      const auto at = static_cast<std::uint32_t>(head);
      const PhiloxCounter random = philox4x32(seed, {at, 0, 0, 0});
      const double pace = 1 + 9 * uniform_unit(random[0], random[1]);
      for (int i = 0; i < head_dim; ++i) {
        all.push_back(static_cast<float>(100 * std::exp(-pace * i / head_dim)));
      }
    }
    return all;
  }
};

// Equation 6 as it is written: the fewest dimensions whose tail is at most r, then rounded up.
int width_of(std::span<const float> values, double r, Weigh weigh) {
  const auto weight = [&](float s) {
    return weigh == Weigh::kEnergies ? double{s} * s : double{s};
  };
  const double all = std::accumulate(values.rbegin(), values.rend(), 0.0,
                                     [&](double sum, float s) { return sum + weight(s); });
  int kept = 0;
  for (; kept < static_cast<int>(values.size()); ++kept) {
    double tail = 0;
    for (std::size_t i = values.size(); i-- > std::size_t(kept);) tail += weight(values[i]);
    if (tail / all <= r) break;
  }
  return std::max(kWidthStep, (kept + kWidthStep - 1) / kWidthStep * kWidthStep);
}

double share_of(const HeadSpectra& world, double r, Weigh weigh) {
  double kept = 0;
  for (std::size_t i = 0; i < 2 * world.heads; ++i) kept += width_of(world.plane(i), r, weigh);
  return kept / static_cast<double>(2 * world.heads * world.head_dim);
}

// All thresholds at which anything could change.
std::set<double> thresholds(const HeadSpectra& world, Weigh weigh) {
  std::set<double> all = {0};
  for (std::size_t i = 0; i < 2 * world.heads; ++i) {
    const auto values = world.plane(i);
    double sum = 0;
    std::vector<double> tails;
    for (std::size_t j = values.size(); j-- > 0;) {
      tails.push_back(sum += weigh == Weigh::kEnergies ? double{values[j]} * values[j] : values[j]);
    }
    for (const double tail : tails) all.insert(tail / sum);
  }
  return all;
}

TEST(ZackRanks, AreThoseOfTheSmallestThresholdThatKeepsSoLittle) {
  for (const Weigh weigh : {Weigh::kValues, Weigh::kEnergies}) {
    for (const auto& world :
         {HeadSpectra(64, 3, 1), HeadSpectra(128, 2, 5), HeadSpectra(48, 4, 9)}) {
      const auto rates = Rates::make(world.view(), weigh);
      ASSERT_TRUE(rates.ok());
      const std::set<double> all = thresholds(world, weigh);
      for (int share = 3400; share <= 9990; share += 470) {
        const auto ranks = rates->at(share);
        ASSERT_TRUE(ranks.ok()) << ranks.status().message();
        const double most = double(share) / kShareParts;
        const auto first = std::find_if(
            all.begin(), all.end(), [&](double r) { return share_of(world, r, weigh) <= most; });
        ASSERT_NE(first, all.end());
        EXPECT_DOUBLE_EQ(ranks->threshold, *first) << share;
        EXPECT_DOUBLE_EQ(ranks->share, share_of(world, *first, weigh)) << share;
        EXPECT_LE(ranks->share, most);
        for (std::size_t head = 0; head < world.heads; ++head) {
          EXPECT_EQ(ranks->widths[head].k, width_of(world.plane(2 * head), *first, weigh));
          EXPECT_EQ(ranks->widths[head].v, width_of(world.plane(2 * head + 1), *first, weigh));
        }
      }
    }
  }
}

TEST(ZackRanks, KeepLessTheHigherTheThreshold) {
  const HeadSpectra world(128, 8, 3);
  const auto rates = Rates::make(world.view(), Weigh::kValues);
  ASSERT_TRUE(rates.ok());
  const auto steps = rates->steps();
  ASSERT_GT(steps.size(), 50U);
  double threshold = 0;
  double share = 1;
  for (const Rates::Step& step : steps) {
    EXPECT_GT(step.threshold, threshold);
    EXPECT_LT(step.share, share);
    EXPECT_DOUBLE_EQ(step.share, share_of(world, step.threshold, Weigh::kValues));
    threshold = step.threshold;
    share = step.share;
  }
  EXPECT_DOUBLE_EQ(share, 16.0 / 128);
}

TEST(ZackRanks, HeadsThatAreAlikeGetNarrowTogether) {
  HeadSpectra world(64, 2, 4);
  std::copy_n(world.k.begin(), 64, world.k.begin() + 64);
  world.v = world.k;
  const auto rates = Rates::make(world.view(), Weigh::kValues);
  ASSERT_TRUE(rates.ok());
  EXPECT_EQ(rates->steps().size(), 3U);
  const auto ranks = rates->at(7400);  // 0.75 would be the next step: too much
  ASSERT_TRUE(ranks.ok());
  for (const HeadWidths& widths : ranks->widths) EXPECT_EQ(widths, (HeadWidths{32, 32}));
}

TEST(ZackRanks, AHeadOfZerosKeepsTheLeastAndAWholeShareKeepsAll) {
  HeadSpectra world(64, 2, 4);
  std::fill_n(world.k.begin(), 64, 0.0F);
  const auto rates = Rates::make(world.view(), Weigh::kValues);
  ASSERT_TRUE(rates.ok());
  EXPECT_EQ(rates->at(9999)->widths[0].k, kWidthStep);
  const auto all = rates->at(kShareParts);
  EXPECT_EQ(all->share, 1);
  for (const HeadWidths& widths : all->widths) EXPECT_EQ(widths, (HeadWidths{64, 64}));
}

TEST(ZackRanks, UniformIsOneWidth) {
  const auto ranks = uniform_ranks(128, 3, 5500);
  ASSERT_TRUE(ranks.ok());
  EXPECT_EQ(ranks->widths, std::vector<HeadWidths>(3, {64, 64}));
  EXPECT_EQ(ranks->share, 0.5);
}

TEST(ZackRanks, RefusesWhatCannotBe) {
  HeadSpectra world(64, 2, 4);
  const auto rates = Rates::make(world.view(), Weigh::kValues);
  EXPECT_EQ(rates->at(2499).status().message(),
            "a share of 0.2499 cannot be met: every head keeps at least 16 of its 64 dimensions");
  EXPECT_TRUE(rates->at(2500).ok());
  EXPECT_FALSE(uniform_ranks(64, 2, 2499).ok());
  EXPECT_FALSE(rates->at(kShareParts + 1).ok());
  for (const float wrong : {-1.0F, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), 1000.0F}) {
    HeadSpectra bad = world;
    bad.v[70] = wrong;
    EXPECT_FALSE(Rates::make(bad.view(), Weigh::kValues).ok()) << wrong;
  }
}

}  // namespace
}  // namespace kvlane::zack
