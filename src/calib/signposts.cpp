// k-means over a histogram, its optimum: in one dimension groups are runs, and where the last of
// them begins is known for one number of runs from what is known for one less.
// SPDX-License-Identifier: Apache-2.0
#include "calib/signposts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace kvlane {
namespace {

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

// Bins that are not empty, in order, and sums over runs of them.
class Bins {
 public:
  explicit Bins(const UnitHistogram& histogram) : upto_(1) {
    for (int bin = 0; bin < UnitHistogram::kBins; ++bin) {
      const double weight = histogram.weights()[bin];
      if (weight <= 0) continue;
      upto_.push_back(upto_.back());
      upto_.back().add(UnitHistogram::middle(bin), weight);
    }
  }

  int count() const { return static_cast<int>(upto_.size()) - 1; }
  double mean(int first, int last) const { return of(first, last).mean(); }
  // The sum of weighted squares of distances from the mean. [first, last) is not empty.
  double error(int first, int last) const {
    const Moments run = of(first, last);
    return std::max(0.0, run.squares - run.sum * run.mean());
  }

 private:
  Moments of(int first, int last) const {
    const Moments &a = upto_[first], &b = upto_[last];
    return {b.weight - a.weight, b.sum - a.sum, b.squares - a.squares};
  }

  std::vector<Moments> upto_;  // sums of the first bins: none, one, ...
};

// Cuts of bins into runs, one run more at a time.
class BestCuts {
 public:
  explicit BestCuts(const Bins& bins) : bins_(bins), error_(bins.count() + 1) {
    for (int end = 1; end <= bins.count(); ++end) error_[end] = bins.error(0, end);
  }

  // The last run of the first `end` bins begins the later the larger `end` is, so each half of them
  // has half of the places to try.
  void add_run() {
    begins_.emplace_back(error_.size());
    std::vector<double> next(error_.size());
    const int runs = static_cast<int>(begins_.size()) + 1;
    find(runs, bins_.count(), runs - 1, bins_.count() - 1, next);
    error_ = std::move(next);
  }

  // Means of the runs of all bins.
  std::vector<double> means() const {
    std::vector<double> means;
    int end = bins_.count();
    for (std::size_t i = begins_.size(); i-- > 0;) {
      means.push_back(bins_.mean(begins_[i][end], end));
      end = begins_[i][end];
    }
    means.push_back(bins_.mean(0, end));
    std::ranges::reverse(means);
    return means;
  }

 private:
  // For ends in [first, last], whose last runs begin in [from, to].
  void find(int first, int last, int from, int to, std::vector<double>& next) {
    if (first > last) return;
    const int end = (first + last) / 2;
    double least = std::numeric_limits<double>::infinity();
    int best = from;
    for (int begin = from; begin <= std::min(to, end - 1); ++begin) {
      const double error = error_[begin] + bins_.error(begin, end);
      if (error < least) least = error, best = begin;
    }
    next[end] = least;
    begins_.back()[end] = best;
    find(first, end - 1, from, best, next);
    find(end + 1, last, best, to, next);
  }

  const Bins& bins_;
  std::vector<double> error_;             // of the first bins in as many runs as there are now
  std::vector<std::vector<int>> begins_;  // of the last run, for each number of runs from two on
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
  const Bins bins(histogram);
  std::vector<double> signposts;
  if (bins.count() == 0) {
    for (int i = 0; i < count; ++i) signposts.push_back((2.0 * i + 1) / count - 1);
    return signposts;
  }
  BestCuts cuts(bins);
  for (int runs = 2; runs <= std::min(count, bins.count()); ++runs) cuts.add_run();
  signposts = cuts.means();
  signposts.resize(count, signposts.back());
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
