// Means of logarithms.
// SPDX-License-Identifier: Apache-2.0
#include "plan/profile_factors.h"

#include <algorithm>
#include <cmath>

namespace kvlane {
namespace {

constexpr double kLearned = 0.5;    // of an error
constexpr double kForgotten = 0.1;  // of what was learned
constexpr double kFactorMax = 16;
// Of a restore's time: whoever reads for so long was held up by it.
constexpr double kReadBound = 0.8;

double learn(double factor, double expected, double measured) {
  if (!(expected > 0) || !(measured > 0)) return factor;
  return std::clamp(factor * std::pow(measured / expected, kLearned), 1 / kFactorMax, kFactorMax);
}

double forget(double factor) { return std::pow(factor, 1 - kForgotten); }

void scale(std::vector<TimedTokens>& points, double factor) {
  for (TimedTokens& point : points) point.seconds *= factor;
}

}  // namespace

RestoreSeconds seconds_of(const RestoreCosts& costs, const RestorePlan& plan) {
  RestoreSeconds seconds;
  int layer = plan.recomputed;
  for (const RestoreRun& run : plan.runs) {
    const RestoreForm& form = costs.forms[run.form];
    double& compute = form.source == RestoreSource::kHidden ? seconds.project : seconds.decode;
    for (const int end = layer + run.layers; layer < end; ++layer) {
      compute += form.layers[layer].compute;
    }
  }
  seconds.recompute = plan.compute - seconds.project - seconds.decode;
  if (plan.recomputed == 0) seconds.recompute = 0;
  seconds.read = plan.read;
  return seconds;
}

MachineProfile scaled(MachineProfile profile, const ProfileFactors& factors) {
  scale(profile.prefill, factors.recompute);
  scale(profile.project, factors.recompute);  // of the layer where recomputing stops
  for (ProfiledForm& form : profile.forms) {
    form.seconds *= form.source == RestoreSource::kHidden ? factors.project : factors.decode;
  }
  profile.read_rate /= factors.read;
  return profile;
}

ProfileFactors learned(const ProfileFactors& factors, const RestoreSeconds& expected,
                       const RestoreSeconds& measured, double seconds) {
  ProfileFactors better = factors;
  better.recompute = learn(factors.recompute, expected.recompute, measured.recompute);
  better.project = learn(factors.project, expected.project, measured.project);
  better.decode = learn(factors.decode, expected.decode, measured.decode);
  if (measured.read >= kReadBound * seconds) {
    better.read = learn(factors.read, expected.read, measured.read);
  }
  return better;
}

ProfileFactors relaxed(const ProfileFactors& factors) {
  return {forget(factors.recompute), forget(factors.project), forget(factors.decode),
          forget(factors.read)};
}

}  // namespace kvlane
