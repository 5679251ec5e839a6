// Estimates come to what is measured, and go back when nothing is.
// SPDX-License-Identifier: Apache-2.0
#include "plan/profile_factors.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlane {
namespace {

MachineProfile profile() {
  MachineProfile profile;
  profile.layers = 8;
  profile.prefill = {{512, 0.04}, {1024, 0.1}};
  profile.project = {{512, 0.01}};
  profile.forms = {{"hidden", RestoreSource::kHidden, 2048, 2e-5},
                   {"kv+splitzip", RestoreSource::kSlabs, 3000, 1e-5}};
  profile.read_rate = 2e8;
  return profile;
}

RestoreSeconds expected_of(const MachineProfile& profile, RestorePlan& plan) {
  const RestoreCosts costs = restore_costs(profile, 1024, profile.read_rate);
  estimate(costs, plan);
  return seconds_of(costs, plan);
}

// Two layers from tokens, three from each form.
RestorePlan mixture() { return {.recomputed = 2, .runs = {{0, 3}, {1, 3}}}; }

TEST(ProfileFactors, APlansSecondsByKind) {
  RestorePlan plan = mixture();
  const RestoreSeconds seconds = expected_of(profile(), plan);
  // The second layer stops at its K and V: 1,024 tokens at the rate of 512.
  EXPECT_NEAR(seconds.recompute, 0.1 + 0.02, 1e-12);
  EXPECT_NEAR(seconds.project, 3 * 1024 * 2e-5, 1e-12);
  EXPECT_NEAR(seconds.decode, 3 * 1024 * 1e-5, 1e-12);
  EXPECT_NEAR(seconds.read, 3 * 1024 * 5048 / 2e8, 1e-12);
  RestorePlan read_only{.recomputed = 0, .runs = {{1, 8}}};
  EXPECT_EQ(expected_of(profile(), read_only).recompute, 0);
  EXPECT_EQ(expected_of(profile(), read_only).project, 0);
}

TEST(ProfileFactors, ScaleEachKindOfWork) {
  RestorePlan plan = mixture();
  const RestoreSeconds before = expected_of(profile(), plan);
  const RestoreSeconds after = expected_of(scaled(profile(), {2, 1, 0.5, 4}), plan);
  EXPECT_NEAR(after.recompute, 2 * before.recompute, 1e-12);
  EXPECT_NEAR(after.project, before.project, 1e-12);
  EXPECT_NEAR(after.decode, before.decode / 2, 1e-12);
  EXPECT_NEAR(after.read, before.read * 4, 1e-12);
}

TEST(ProfileFactors, ComeToWhatIsMeasured) {
  const ProfileFactors truth{1, 1.7, 0.6, 2.5};
  RestorePlan plan{.recomputed = 0, .runs = {{0, 4}, {1, 4}}};
  const RestoreSeconds measured = expected_of(scaled(profile(), truth), plan);
  ProfileFactors factors;
  double error = 2.5;
  for (int i = 0; i < 10; ++i) {
    const RestoreSeconds expected = expected_of(scaled(profile(), factors), plan);
    EXPECT_NEAR(measured.read / expected.read, error, 1e-9);
    factors = learned(factors, expected, measured, measured.read);
    error = std::sqrt(error);
  }
  EXPECT_EQ(factors.recompute, 1);
  EXPECT_NEAR(factors.project, truth.project, 1e-2);
  EXPECT_NEAR(factors.decode, truth.decode, 1e-2);
  EXPECT_NEAR(factors.read, truth.read, 1e-2);
}

TEST(ProfileFactors, ReadingInTheShadowOfComputingTeachesNothing) {
  const RestoreSeconds expected{0, 1, 0, 0.5};
  EXPECT_EQ(learned({}, expected, {0, 1, 0, 0.9}, 1.2).read, 1);
  EXPECT_GT(learned({}, expected, {0, 1, 0, 0.9}, 1.0).read, 1);
}

TEST(ProfileFactors, StayBoundedAndAreForgotten) {
  ProfileFactors factors;
  for (int i = 0; i < 100; ++i) factors = learned(factors, {1, 1, 1, 1}, {1e9, 1e-9, 0, 1e9}, 1e9);
  EXPECT_EQ(factors.recompute, 16);
  EXPECT_EQ(factors.project, 1.0 / 16);
  EXPECT_EQ(factors.decode, 1);
  for (int i = 0; i < 100; ++i) factors = relaxed(factors);
  EXPECT_NEAR(factors.recompute, 1, 1e-3);
  EXPECT_NEAR(factors.project, 1, 1e-3);
}

}  // namespace
}  // namespace kvlane
