// Choices against a search that tries all of them, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/random.h"
#include "format/shape.h"
#include "quant/format_text.h"

namespace kvlane::zack {
namespace {

constexpr int kDim = 32;
constexpr std::size_t kChoices = 2 * kCodeBits.size();  // of two widths
constexpr std::size_t kHeads = 2;
constexpr std::size_t kPlanes = 2 * kHeads;

PlaneCodes choice(std::size_t i) { return {i % 2 == 0 ? 16 : 32, kCodeBits[i / 2]}; }

// Errors that fall with bits and width, but for luck: some choices are worse than cheaper ones.
struct HeadErrors {
  explicit HeadErrors(std::uint64_t seed) {
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      for (std::uint32_t i = 0; i < kChoices; ++i) {
        k.push_back(error(seed, head, i));
        v.push_back(error(seed, head + 100, i));
      }
    }
  }

  Errors view() const { return {kDim, k, v}; }
  double of(std::size_t plane, std::size_t i) const {
    return (plane % 2 == 0 ? k : v)[plane / 2 * kChoices + i];
  }
  double of(std::size_t plane, PlaneCodes codes) const {
    std::size_t i = 0;
    while (choice(i) != codes) ++i;
    return of(plane, i);
  }

  std::vector<float> k, v;

 private:
  static float error(std::uint64_t seed, std::uint32_t plane, std::uint32_t i) {
    const PhiloxCounter weights = philox4x32(seed, {plane, 0, 0, 0});
    const PhiloxCounter luck = philox4x32(seed, {plane, i, 1, 0});
    const double lost = 0.5 / choice(i).width + std::exp2(-choice(i).bits);
    return static_cast<float>(std::exp(6 * uniform_unit(weights[0], weights[1])) * lost *
                              (0.5 + uniform_unit(luck[0], luck[1])));
  }
};

struct Sum {
  std::size_t bytes = 0;
  double error = 0;
};

Sum sum_of(const HeadErrors& world, const std::vector<HeadCodes>& heads) {
  Sum sum;
  for (std::size_t i = 0; i < kPlanes; ++i) {
    const PlaneCodes codes = i % 2 == 0 ? heads[i / 2].k : heads[i / 2].v;
    sum.bytes += plane_bytes(codes);
    sum.error += world.of(i, codes);
  }
  return sum;
}

// The least error of all choices together that take at most so many bytes.
double least_error(const HeadErrors& world, std::size_t bytes_max) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t all = 0; all < kChoices * kChoices * kChoices * kChoices; ++all) {
    Sum sum;
    std::size_t rest = all;
    for (std::size_t plane = 0; plane < kPlanes; ++plane, rest /= kChoices) {
      sum.bytes += plane_bytes(choice(rest % kChoices));
      sum.error += world.of(plane, rest % kChoices);
    }
    if (sum.bytes <= bytes_max) least = std::min(least, sum.error);
  }
  return least;
}

std::vector<HeadCodes> choose(const HeadErrors& world, std::int64_t budget) {
  auto codes = choose_codes(world.view(), budget);
  EXPECT_TRUE(codes.ok()) << codes.status().message();
  return codes.ok() ? *codes : std::vector<HeadCodes>();
}

std::size_t bytes_of(std::int64_t budget) {
  return kPlanes * kDim * kBlockTokens * budget / (std::size_t{8} * kShareParts);
}

TEST(ChooseCodes, NothingElseOfAsFewBytesLosesLess) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const HeadErrors world(seed);
    double before = std::numeric_limits<double>::infinity();
    for (std::int64_t budget = 18000; budget < 95000; budget += 3700) {
      const Sum sum = sum_of(world, choose(world, budget));
      EXPECT_LE(sum.bytes, bytes_of(budget));
      EXPECT_LE(sum.error, least_error(world, sum.bytes) * (1 + 1e-12)) << seed << ' ' << budget;
      EXPECT_LE(sum.error, before);
      before = sum.error;
    }
  }
}

TEST(ChooseCodes, StopsWhereTheNextDoesNotFit) {
  const HeadErrors world(3);
  const Sum whole = sum_of(world, choose(world, 40000));
  // The least budget at which the same is chosen: a ten thousandth less, and it is not.
  const auto exact = static_cast<std::int64_t>(
      (whole.bytes * 8 * kShareParts + kPlanes * kDim * kBlockTokens - 1) /
      (kPlanes * kDim * kBlockTokens));
  EXPECT_EQ(sum_of(world, choose(world, exact)).bytes, whole.bytes);
  EXPECT_LT(sum_of(world, choose(world, exact - 1)).bytes, whole.bytes);
}

TEST(ChooseCodes, WorkedExample) {
  const std::vector<float> k = {0.5F, 0.1F, 0.01F};
  const std::vector<float> v = {0.3F, 0.1F, 0};
  const auto codes = choose_codes({16, k, v}, 5 * kShareParts);
  ASSERT_TRUE(codes.ok());
  EXPECT_EQ(codes->front().k, (PlaneCodes{16, 4}));
  EXPECT_EQ(codes->front().v, (PlaneCodes{16, 2}));
}

TEST(ChooseCodes, WhereNothingIsLostTheLeastIsEnough) {
  const std::vector<float> none(kChoices, 0);
  const auto codes = choose_codes({kDim, none, none}, 16 * kShareParts);
  ASSERT_TRUE(codes.ok());
  EXPECT_EQ(codes->front().k, (PlaneCodes{16, 2}));
}

TEST(ChooseCodes, WhatCannotBeIsRefused) {
  HeadErrors world(1);
  EXPECT_EQ(choose_codes(world.view(), 16249).status().message(),
            "fewer than 1.625 bits a value cannot be met");
  EXPECT_TRUE(choose_codes(world.view(), 16250).ok());
  for (const float wrong : {-1.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    world.v[3] = wrong;
    EXPECT_EQ(choose_codes(world.view(), 40000).status().message(),
              "errors of codes are not finite or negative");
  }
}

}  // namespace
}  // namespace kvlane::zack
