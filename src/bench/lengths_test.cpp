// Lengths keep their bounds and means; papers' workloads are there by name.
// SPDX-License-Identifier: Apache-2.0
#include "bench/lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace kvlane {
namespace {

using testing::HasSubstr;

constexpr int kLengths = 20000;

std::vector<int> draw_many(const LengthDistribution& distribution) {
  RandomStream random(2, Purpose::kLengths, 0);
  std::vector<int> lengths(kLengths);
  for (int& length : lengths) length = draw_length(distribution, random);
  return lengths;
}

double mean(const std::vector<int>& lengths) {
  double sum = 0;
  for (const int length : lengths) sum += length;
  return sum / static_cast<double>(lengths.size());
}

TEST(Lengths, UniformReachBothEnds) {
  const std::vector<int> lengths = draw_many(around(10, 0.2));
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  EXPECT_EQ(*least, 8);
  EXPECT_EQ(*most, 12);
  EXPECT_NEAR(mean(lengths), 10, 0.1);
}

TEST(Lengths, WithoutARangeAreAlwaysTheSame) {
  for (const int length : draw_many(around(10, 0))) ASSERT_EQ(length, 10);
}

TEST(Lengths, AreNeverZero) {
  for (const int length : draw_many(around(1, 0.9))) ASSERT_GE(length, 1);
}

TEST(Lengths, GeometricHaveTheirMean) {
  // The standard deviation is about the mean: six standard errors.
  EXPECT_NEAR(mean(draw_many({LengthDistribution::Shape::kGeometric, 66.8})), 66.8, 3);
  EXPECT_NEAR(mean(draw_many({LengthDistribution::Shape::kGeometric, 4.3})), 4.3, 0.2);
}

TEST(Lengths, OfPapersHaveThePublishedMeans) {
  for (const std::string& name : paper_workload_names()) {
    const Result<PaperWorkload> paper = find_paper_workload(name);
    ASSERT_TRUE(paper.ok());
    for (const LengthDistribution& distribution : {paper->input, paper->output}) {
      const std::vector<int> lengths = draw_many(distribution);
      EXPECT_NEAR(mean(lengths), distribution.mean, 0.05 * distribution.mean) << name;
      if (distribution.shape != LengthDistribution::Shape::kBeta) continue;
      const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
      EXPECT_GE(*least, distribution.min) << name;
      EXPECT_LE(*most, distribution.max) << name;
    }
  }
}

TEST(Lengths, AnUnknownPaperIsToldTheKnownOnes) {
  const Result<PaperWorkload> paper = find_paper_workload("imdbb");
  ASSERT_FALSE(paper.ok());
  EXPECT_EQ(paper.status().code(), Code::kNotFound);
  EXPECT_THAT(paper.status().message(), HasSubstr("'imdbb'"));
  EXPECT_THAT(paper.status().message(), HasSubstr("cocktail"));
}

}  // namespace
}  // namespace kvlane
