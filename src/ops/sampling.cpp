// Draws from the truncated distribution without sorting the vocabulary.
//
// Whatever truncates (min_p, top_k, top_p) keeps the first tokens of the ranking by logit, so what
// is kept is told by the last of them. To find that one, tokens are counted into buckets by their
// distance from the best, and only the bucket in which the count (or the mass) is reached is
// sorted. The draw then runs over the kept tokens in the order of their ids. The vocabulary is cut
// into runs whose largest logits are known, so that a run with nothing to keep costs one
// comparison.
// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

// Below this, exp() of a distance is less than 2^-92: over the largest vocabulary such tokens weigh
// less than the 53 random bits of a draw resolve.
constexpr double kDistanceMin = -64;
constexpr std::size_t kRun = 512;

// -infinity if there is nothing but NaN.
float largest(std::span<const float> logits) {
  // Independent lanes, which a compiler may put into vector registers.
  std::array<float, 16> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + lanes.size() <= logits.size(); i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const float logit = logits[i + lane];
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];  // not for NaN
    }
  }
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  return *std::max_element(lanes.begin(), lanes.end());
}

// The first of the best; 0 if there is nothing but NaN.
std::int32_t argmax(std::span<const float> logits) {
  const auto best = std::find(logits.begin(), logits.end(), largest(logits));
  return best == logits.end() ? 0 : static_cast<std::int32_t>(best - logits.begin());
}

struct Candidate {
  float logit;
  std::int32_t id;
};

// More likely first; ties by id, so that the order does not depend on the sort.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The tokens of one draw: those that rank up to `last_`. NaN is never among them.
class Kept {
 public:
  // `best` is the most likely token; its logit is finite.
  Kept(std::span<const float> logits, std::int32_t best, const SamplingParams& params);

  // Keeps the first `count`.
  void keep_count(int count);
  // Keeps the fewest first ones that hold `fraction` of the probability kept so far.
  void keep_mass(double fraction);
  // The kept token at which the running sum of probabilities, in the order of ids, passes
  // `fraction` of all.
  std::int32_t at_fraction(double fraction) const;

 private:
  static constexpr int kBucketsPerUnit = 16;
  static constexpr int kBuckets = static_cast<int>(-kDistanceMin) * kBucketsPerUnit + 1;
  using Buckets = std::array<double, kBuckets>;

  // Logarithm of the probability relative to the best token's: 0 or less.
  double distance(float logit) const { return (static_cast<double>(logit) - best_.logit) * scale_; }
  int bucket(float logit) const {
    return std::min(static_cast<int>(distance(logit) * -kBucketsPerUnit), kBuckets - 1);
  }
  double weight(float logit) const { return std::exp(distance(logit)); }

  // Calls visit(logit, id) for the kept tokens of one run, or of all, in the order of ids.
  template <typename Visit>
  void each_of_run(std::size_t run, Visit visit) const;
  template <typename Visit>
  void each(Visit visit) const;

  // Keeps the fewest first ones whose weights reach `target`, or all. `weigh(logit)` is a token's
  // weight, `weights` the sums of those at each distance.
  template <typename Weigh>
  void truncate(const Buckets& weights, double target, Weigh weigh);

  std::span<const float> logits_;
  Candidate best_;
  double scale_;
  std::vector<float> largest_;  // of each run
  Candidate last_;
};

Kept::Kept(std::span<const float> logits, std::int32_t best, const SamplingParams& params)
    : logits_(logits), best_{logits[best], best}, scale_(1.0 / params.temperature) {
  largest_.reserve(logits.size() / kRun + 1);
  for (std::size_t begin = 0; begin < logits.size(); begin += kRun) {
    largest_.push_back(largest(logits.subspan(begin, std::min(kRun, logits.size() - begin))));
  }
  double distance_min = kDistanceMin;
  if (params.min_p > 0) distance_min = std::max(distance_min, std::log(double{params.min_p}));
  // Not -infinity: that is a token which cannot come.
  constexpr double kLogitMin = std::numeric_limits<float>::lowest();
  const double logit_min = best_.logit + distance_min * params.temperature;
  last_ = {static_cast<float>(std::max(logit_min, kLogitMin)),
           std::numeric_limits<std::int32_t>::max()};
}

template <typename Visit>
void Kept::each_of_run(std::size_t run, Visit visit) const {
  if (largest_[run] < last_.logit) return;
  const std::size_t end = std::min((run + 1) * kRun, logits_.size());
  for (std::size_t i = run * kRun; i < end; ++i) {
    const float logit = logits_[i];
    const auto id = static_cast<std::int32_t>(i);
    if (logit > last_.logit || (logit == last_.logit && id <= last_.id)) visit(logit, id);
  }
}

template <typename Visit>
void Kept::each(Visit visit) const {
  for (std::size_t run = 0; run < largest_.size(); ++run) each_of_run(run, visit);
}

void Kept::keep_count(int count) {
  if (static_cast<std::size_t>(count) <= largest_.size()) {
    // As many runs have a token as likely as the least of their best ones, so none below it is
    // among the first.
    std::vector<float> floor = largest_;
    std::nth_element(floor.begin(), floor.begin() + (count - 1), floor.end(), std::greater<>());
    last_.logit = std::max(last_.logit, floor[count - 1]);
  }
  Buckets counts{};
  each([&](float logit, std::int32_t) { counts[bucket(logit)] += 1; });
  truncate(counts, count, [](float) { return 1.0; });
}

void Kept::keep_mass(double fraction) {
  Buckets weights{};
  each([&](float logit, std::int32_t) { weights[bucket(logit)] += weight(logit); });
  const double target = fraction * std::accumulate(weights.begin(), weights.end(), 0.0);
  truncate(weights, target, [this](float logit) { return weight(logit); });
}

template <typename Weigh>
void Kept::truncate(const Buckets& weights, double target, Weigh weigh) {
  double sum = 0;
  int crossing = 0;
  while (crossing < kBuckets && sum + weights[crossing] < target) sum += weights[crossing++];
  if (crossing == kBuckets) return;

  std::vector<Candidate> candidates;
  each([&](float logit, std::int32_t id) {
    if (bucket(logit) == crossing) candidates.push_back({logit, id});
  });
  std::sort(candidates.begin(), candidates.end(), before);
  for (const Candidate& candidate : candidates) {
    last_ = candidate;
    sum += weigh(candidate.logit);
    if (sum >= target) break;
  }
}

std::int32_t Kept::at_fraction(double fraction) const {
  std::vector<double> sums(largest_.size());
  for (std::size_t run = 0; run < sums.size(); ++run) {
    each_of_run(run, [&](float logit, std::int32_t) { sums[run] += weight(logit); });
  }
  double rest = fraction * std::accumulate(sums.begin(), sums.end(), 0.0);
  std::size_t run = 0;
  while (run + 1 < sums.size() && rest >= sums[run]) rest -= sums[run++];

  std::int32_t drawn = best_.id;  // if rounding led to a run without kept tokens
  each_of_run(run, [&](float logit, std::int32_t id) {
    if (rest < 0) return;
    drawn = id;
    rest -= weight(logit);
  });
  return drawn;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                          const SamplingKey& key, int position) {
  const std::int32_t best = argmax(logits);
  if (params.temperature <= 0 || !std::isfinite(logits[best])) return best;

  Kept kept(logits, best, params);
  if (params.top_k > 0) kept.keep_count(params.top_k);
  if (params.top_p < 1) kept.keep_mass(params.top_p);
  const PhiloxCounter words =
      philox4x32(key.seed, {static_cast<std::uint32_t>(position), key.choice, 0, 0});
  return kept.at_fraction(uniform_unit(words[0], words[1]));
}

}  // namespace kvlane
