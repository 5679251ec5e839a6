// k-means over a histogram.
// SPDX-License-Identifier: Apache-2.0
#include "calib/signposts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvlane {
namespace {

constexpr int kRoundsMax = 50;  // as in KVQuant's public code

// Calls body(level, value, weight) for each bin that is not empty; levels are signposts' indices.
template <class Body>
void for_nearest(const UnitHistogram& histogram, std::span<const double> signposts,
                 const Body& body) {
  std::size_t level = 0;
  for (int bin = 0; bin < UnitHistogram::kBins; ++bin) {
    const double value = UnitHistogram::middle(bin);
    while (level + 1 < signposts.size() && value > (signposts[level] + signposts[level + 1]) / 2) {
      ++level;
    }
    const double weight = histogram.weights()[bin];
    if (weight > 0) body(level, value, weight);
  }
}

std::vector<double> quantiles(const UnitHistogram& histogram, int count) {
  double total = 0;
  for (const double weight : histogram.weights()) total += weight;
  std::vector<double> found;
  double below = 0;
  for (int bin = 0; bin < UnitHistogram::kBins; ++bin) {
    below += histogram.weights()[bin];
    while (static_cast<int>(found.size()) < count &&
           below * count > (static_cast<double>(found.size()) + 0.5) * total) {
      found.push_back(UnitHistogram::middle(bin));
    }
  }
  // Of an empty one, or when rounding left the last ones out.
  while (static_cast<int>(found.size()) < count) {
    found.push_back(total > 0 ? 1.0 : (2.0 * static_cast<double>(found.size()) + 1) / count - 1);
  }
  return found;
}

struct Moments {
  double weight = 0;
  double sum = 0;
  double squares = 0;

  void add(double value, double by) {
    weight += by;
    sum += by * value;
    squares += by * value * value;
  }
  double mean() const { return sum / weight; }
  double deviation() const { return std::sqrt(std::max(0.0, squares / weight - mean() * mean())); }
};

}  // namespace

void UnitHistogram::add(float value, double weight) {
  const float scaled = (value + 1) * (kBins / 2);
  const int bin = scaled > 0 ? static_cast<int>(std::min(scaled, float{kBins - 1})) : 0;
  weights_[bin] += weight;
}

void UnitHistogram::add(const UnitHistogram& other) {
  for (int bin = 0; bin < kBins; ++bin) weights_[bin] += other.weights_[bin];
}

std::vector<double> find_signposts(const UnitHistogram& histogram, int count) {
  std::vector<double> signposts = quantiles(histogram, count);
  for (int round = 0; round < kRoundsMax; ++round) {
    std::vector<Moments> nearest(count);
    for_nearest(histogram, signposts, [&](std::size_t level, double value, double weight) {
      nearest[level].add(value, weight);
    });
    bool moved = false;
    for (int i = 0; i < count; ++i) {
      if (nearest[i].weight == 0 || nearest[i].mean() == signposts[i]) continue;
      signposts[i] = nearest[i].mean();
      moved = true;
    }
    // One without values stays, and the others may pass it.
    std::ranges::sort(signposts);
    if (!moved) break;
  }
  return signposts;
}

std::vector<double> normalise_levels(const UnitHistogram& histogram,
                                     std::span<const double> signposts) {
  Moments values;
  Moments quantised;
  for_nearest(histogram, signposts, [&](std::size_t level, double value, double weight) {
    values.add(value, weight);
    quantised.add(signposts[level], weight);
  });
  std::vector<double> levels(signposts.begin(), signposts.end());
  if (values.weight == 0 || quantised.deviation() == 0) return levels;
  const double stretch = values.deviation() / quantised.deviation();
  for (double& level : levels) level = (level - quantised.mean()) * stretch + values.mean();
  return levels;
}

}  // namespace kvlane
