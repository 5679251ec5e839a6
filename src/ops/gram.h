// Gram matrices: products of a tall matrix's columns with each other, summed while its rows go by.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvlane {

// Adds rows to a Gram matrix [d][d] in double precision, of which the entries [i][j] with i <= j
// count and no other is touched. Rows are gathered, so sums depend on their order and on where
// flush() is called, and on nothing else. One thread at a time.
class GramSum {
 public:
  // gram: outlives this, zero before the first row.
  GramSum(std::size_t d, double* gram);

  // Where the next row goes, [d]: to be filled before the next call.
  double* next() {
    if (rows_ == kRows) flush();
    return gathered_.data() + rows_++ * d_;
  }
  // Adds what was gathered. Called once behind the last row.
  void flush();

 private:
  static constexpr std::size_t kRows = 128;  // at once: enough for products to pay, still in cache

  std::size_t d_;
  double* gram_;
  std::vector<double> gathered_;
  std::size_t rows_ = 0;
};

// The sum of the squares of all entries of the tall matrix.
double squares_of(std::span<const double> gram, std::size_t d);

}  // namespace kvlane
