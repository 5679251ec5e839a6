// Non-uniform levels for values between -1 and 1, from a histogram of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>
#include <span>
#include <vector>

namespace kvlane {

// Weights of values in [-1, 1], in bins of equal width.
class UnitHistogram {
 public:
  static constexpr int kBins = 4096;

  UnitHistogram() : weights_(kBins) {}

  // Values outside count as the nearest bin.
  void add(float value, double weight);
  void add(const UnitHistogram& other);

  std::span<const double> weights() const { return weights_; }
  double total() const { return std::reduce(weights_.begin(), weights_.end()); }
  static double middle(int bin) { return (2 * bin + 1) / double{kBins} - 1; }

 private:
  std::vector<double> weights_;
};

// Signposts by k-means: those that leave the least sum of weighted squares of distances, ascending.
// Fewer different ones where there are fewer values; of an empty histogram: evenly spread.
std::vector<double> find_signposts(const UnitHistogram& histogram, int count);

// What the signposts should stand for, so that quantised values have the mean and the standard
// deviation of the values themselves (KVQuant's Q-Norm).
std::vector<double> normalise_levels(const UnitHistogram& histogram,
                                     std::span<const double> signposts);

}  // namespace kvlane
