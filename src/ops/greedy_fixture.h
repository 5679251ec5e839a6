// Logits as tests of greedy choice see them, and what the CPU chooses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/greedy_gpu.h"
#include "ops/sampling.h"

namespace kvlane::greedy_fixture {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Chosen {
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;
  friend bool operator==(const Chosen&, const Chosen&) = default;
};

// Rows of one vocabulary; they differ in how sure they are.
class Scene {
 public:
  Scene(int rows, int vocab, unsigned seed = 1) : rows_(rows), vocab_(vocab) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    logits_.resize(std::size_t(rows) * vocab);
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      constexpr float kSizes[] = {1, 10, 0.01F, 100};
      logits_[i] = kSizes[i / vocab % 4] * normal(random);
    }
  }

  int rows() const { return rows_; }
  int vocab() const { return vocab_; }
  const std::vector<float>& logits() const { return logits_; }
  float* row(int i) { return &logits_[std::size_t(i) * vocab_]; }
  std::size_t parts() const { return std::size_t(rows_) * greedy_parts(vocab_); }

  // With U = 2^-24: the difference from the best logit, d, is rounded, and so are log2(e) and the
  // product with it: the power of two is off by 3 U d from that, and by 4 U of its own; the
  // difference of bests of two parts adds as much once more, and the product U. Sums add U for each
  // of 32 + 5 + 8 additions in a part, and of parts / 32 + 5. The logarithm is off by that part of
  // the sum, and by 4 U of itself.
  void expect_right(const std::vector<std::int32_t>& tokens,
                    const std::vector<float>& logprobs) const {
    constexpr double kU = 0x1p-24;
    for (int i = 0; i < rows_; ++i) {
      const std::span<const float> row(&logits_[std::size_t(i) * vocab_], vocab_);
      SamplingParams params;
      params.temperature = 0;
      const std::int32_t best = sample_token(row, params, {}, 0);
      ASSERT_EQ(tokens[i], best) << "row " << i << " of " << vocab_ << " tokens";
      const float exact = token_logprobs(row, best, 0).logprob;
      if (!std::isfinite(row[best])) {
        ASSERT_EQ(logprobs[i], exact) << "row " << i;
        continue;
      }
      double sum = 0, off = 0;
      for (const float logit : row) {
        if (std::isnan(logit) || logit == -kInfinity) continue;
        const double d = double{row[best]} - logit, weight = std::exp(-d);
        sum += weight;
        off += (6 * d + 9) * weight;
      }
      const double depth = 45 + greedy_parts(vocab_) / 32.0 + 6;
      const double allowed = (off / sum + depth) * kU + 4 * kU * std::abs(exact);
      ASSERT_NEAR(logprobs[i], exact, allowed) << "row " << i << " of " << vocab_ << " tokens";
    }
  }

 private:
  const int rows_, vocab_;
  std::vector<float> logits_;
};

// A row for every special case.
inline Scene special_rows(int vocab) {
  Scene scene(10, vocab, 7);
  const int last = vocab - 1;
  std::fill_n(scene.row(0), vocab, kNan);
  std::fill_n(scene.row(1), vocab, -kInfinity);
  std::fill_n(scene.row(2), vocab, kNan);
  scene.row(2)[last] = -kInfinity;
  std::fill_n(scene.row(3), vocab, 2.5F);
  scene.row(3)[0] = 1;  // all others are equal
  scene.row(4)[last] = kInfinity;
  scene.row(5)[vocab / 2] = scene.row(5)[last] = kInfinity;
  scene.row(6)[last / 3] = scene.row(6)[last] = 1000;
  for (int i = 0; i < vocab; i += 2) scene.row(7)[i] = kNan;
  for (int i = 0; i < vocab; i += 3) scene.row(8)[i] = -kInfinity;
  std::fill_n(scene.row(9), vocab, -0.0F);
  scene.row(9)[last] = 0;  // equal to all others
  return scene;
}

}  // namespace kvlane::greedy_fixture
