// Rows of activations as tests of device code see them: embedding, norm and activation with
// everything poisoned that is not theirs, and what must come of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "ops/rows.h"
#include "ops/rows_gpu.h"

namespace kvlane::rows_fixture {

// Rounding a real number to a float changes it by this part at most.
inline constexpr double kU = 0x1p-24;
inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::uint16_t kPoison16 = 0xA5A5;

struct Normed {
  std::vector<float> residual;
  std::vector<std::uint16_t> out;
  friend bool operator==(const Normed&, const Normed&) = default;
};

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// Whether bfloat16 `bits` are what a float that is at most `allowed` from `exact` rounds to.
inline bool is_rounded(std::uint16_t bits, double exact, double allowed) {
  const auto rounded = [](double x) { return to_float(to_bf16(static_cast<float>(x))); };
  const float value = to_float(bf16{bits});
  return value >= rounded(exact - allowed) && value <= rounded(exact + allowed);
}

inline std::vector<float> normal_values(std::size_t count, float size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = size * normal(random);
  return values;
}

class EmbedScene {
 public:
  static constexpr int kVocab = 50;

  EmbedScene(int rows, int hidden, unsigned seed = 1) : hidden_(hidden) {
    std::mt19937 random(seed);
    for (float value : normal_values(std::size_t{kVocab} * hidden, 1, random)) {
      table_.push_back(to_bf16(value).bits);
    }
    for (int i = 0; i < rows; ++i) tokens_.push_back(static_cast<int>(random() % kVocab));
    // The ends of the table, and padding.
    if (rows > 1) tokens_[1] = kVocab - 1;
    if (rows > 2) tokens_[2] = -1;
    if (rows > 3) tokens_[3] = 0;
  }

  const std::vector<std::uint16_t>& table() const { return table_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  std::size_t values() const { return tokens_.size() * hidden_; }

  // With the scene's own addresses; outputs are the caller's, in all scenes.
  EmbedRows rows() const {
    return {.table = reinterpret_cast<const std::byte*>(table_.data()),
            .tokens = tokens_.data(),
            .rows = static_cast<std::int32_t>(tokens_.size()),
            .hidden = hidden_};
  }

  void expect_right(const std::vector<float>& residual) const {
    for (std::size_t i = 0; i < values(); ++i) {
      const std::size_t row = i / hidden_, at = i % hidden_;
      const float expected =
          tokens_[row] < 0 ? 0 : to_float(bf16{table_[tokens_[row] * hidden_ + at]});
      ASSERT_EQ(bits_of(residual[i]), bits_of(expected)) << "row " << row << ", value " << at;
    }
  }

 private:
  const int hidden_;
  std::vector<std::uint16_t> table_;
  std::vector<std::int32_t> tokens_;
};

struct NormShape {
  int rows;  // of `residual`
  int n;
  bool add = true, norm = true;
  std::vector<std::int32_t> take = {};  // empty: all rows as they are
};

// Rows of very different sizes, one of zeros.
class NormScene {
 public:
  explicit NormScene(NormShape shape, unsigned seed = 1) : shape_(std::move(shape)) {
    std::mt19937 random(seed);
    for (int row = 0; row < shape_.rows; ++row) {
      constexpr float kSizes[] = {1, 1e-4F, 0, 1e6F, 30};
      const float size = kSizes[row % 5];
      for (float value : normal_values(shape_.n, size, random)) residual_.push_back(value);
      for (float value : normal_values(shape_.n, size / 2, random)) add_.push_back(value);
    }
    weight_ = normal_values(shape_.n, 1, random);
  }

  const std::vector<float>& residual() const { return residual_; }
  const std::vector<float>& add() const { return add_; }
  const std::vector<float>& weight() const { return weight_; }
  const std::vector<std::int32_t>& take() const { return shape_.take; }
  int out_rows() const {
    return shape_.take.empty() ? shape_.rows : static_cast<int>(shape_.take.size());
  }
  std::size_t out_values() const { return shape_.norm ? std::size_t(out_rows()) * shape_.n : 0; }

  NormRows rows() const {
    return {.add = shape_.add ? add_.data() : nullptr,
            .take = shape_.take.empty() ? nullptr : shape_.take.data(),
            .weight = shape_.norm ? weight_.data() : nullptr,
            .eps = 1e-5F,
            .rows = out_rows(),
            .n = shape_.n};
  }

  // `residual` as it is afterwards, and out.
  void expect_right(const std::vector<float>& residual,
                    const std::vector<std::uint16_t>& out) const {
    std::vector<float> expected = residual_;
    for (int i = 0; i < out_rows(); ++i) {
      const int row = shape_.take.empty() ? i : shape_.take[i];
      if (shape_.add && row >= 0) {
        add_row(&expected[std::size_t(row) * shape_.n], &add_[std::size_t(row) * shape_.n],
                shape_.n);
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(bits_of(residual[i]), bits_of(expected[i])) << "value " << i % shape_.n;
    }
    ASSERT_EQ(out.size(), out_values());
    for (int i = 0; shape_.norm && i < out_rows(); ++i) {
      const int row = shape_.take.empty() ? i : shape_.take[i];
      const std::uint16_t* const own = &out[std::size_t(i) * shape_.n];
      if (row < 0) {
        for (int at = 0; at < shape_.n; ++at) ASSERT_EQ(own[at], 0) << "row " << i;
        continue;
      }
      expect_norm(&expected[std::size_t(row) * shape_.n], own, i);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  // A square is rounded, and with it go at most 4 additions in its four values, 4 in its thread, 5
  // in its warp, 32 over warps; then the division and eps: the sum is off by at most 48 U, its
  // square root by half that and U, the scale by U more, and two products follow: 28 U and terms of
  // second order. Squares that underflow are nothing beside eps.
  void expect_norm(const float* x, const std::uint16_t* out, int row) const {
    double squares = 0;
    for (int i = 0; i < shape_.n; ++i) squares += double{x[i]} * x[i];
    const double scale = 1 / std::sqrt(squares / shape_.n + 1e-5F);
    for (int i = 0; i < shape_.n; ++i) {
      const double exact = x[i] * scale * weight_[i];
      ASSERT_TRUE(is_rounded(out[i], exact, 29 * kU * std::abs(exact) + 0x1p-140))
          << to_float(bf16{out[i]}) << " is not " << exact << ": row " << row << ", value " << i
          << " of " << shape_.n;
    }
  }

  const NormShape shape_;
  std::vector<float> residual_, add_, weight_;
};

class SiluScene {
 public:
  SiluScene(int rows, int ffn, unsigned seed = 1) : rows_(rows), ffn_(ffn) {
    std::mt19937 random(seed);
    gate_up_ = normal_values(std::size_t(rows) * 2 * ffn, 4, random);
    // Both ends of the exponential.
    constexpr float kGates[] = {-200, -89, -88.5F, -87, 0, -0.0F, 88, 200};
    std::copy(std::begin(kGates), std::end(kGates), gate_up_.begin());
  }

  const std::vector<float>& gate_up() const { return gate_up_; }
  std::size_t values() const { return std::size_t(rows_) * ffn_; }
  SiluRows rows() const { return {.gate_up = gate_up_.data(), .rows = rows_, .ffn = ffn_}; }

  // What the CPU makes of it.
  std::vector<std::uint16_t> on_cpu() const {
    std::vector<float> row(ffn_);
    std::vector<std::uint16_t> out(values());
    for (int i = 0; i < rows_; ++i) {
      const float* const gate = &gate_up_[std::size_t(i) * 2 * ffn_];
      silu_multiply(gate, gate + ffn_, ffn_, row.data());
      store_row(row.data(), ffn_, ElementType::kBf16, &out[std::size_t(i) * ffn_]);
    }
    return out;
  }

  // An exponential is within 2 units of its last place, 4 U; the sum, the quotient and the product
  // are rounded: 7 U. Where e^-gate overflows, from 2^128 on, the result is 0.
  void expect_right(const std::vector<std::uint16_t>& out) const {
    for (std::size_t i = 0; i < values(); ++i) {
      const std::size_t at = i / ffn_ * 2 * ffn_ + i % ffn_;
      const double gate = gate_up_[at], up = gate_up_[at + ffn_];
      const double exact = gate / (1 + std::exp(-gate)) * up;
      const double allowed = 8 * kU * std::abs(exact) + std::abs(gate * up) * 0x1p-127 + 0x1p-140;
      ASSERT_TRUE(is_rounded(out[i], exact, allowed))
          << to_float(bf16{out[i]}) << " is not silu(" << gate << ") * " << up << " = " << exact;
    }
  }

 private:
  const int rows_, ffn_;
  std::vector<float> gate_up_;
};

}  // namespace kvlane::rows_fixture
