// Attention that dequantises as tests see it: exact results in double precision of the operands
// that kernels make, and how far a kernel may be from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "attention/hack_prepared_fixture.h"
#include "bench/gpu_dequantise.h"

namespace kvlane::dequantise_fixture {

using hack_fixture::Prepared;
using hack_fixture::Scene;

inline constexpr int kDim = 128;
inline constexpr GpuDequantiser kAll[] = {GpuDequantiser::kMatrixWhole,
                                          GpuDequantiser::kMatrixSplit, GpuDequantiser::kCores};
inline const char* name_of(GpuDequantiser how) {
  return how == GpuDequantiser::kMatrixWhole   ? "whole"
         : how == GpuDequantiser::kMatrixSplit ? "split"
                                               : "cores";
}

// Some heads over sequences of so many blocks, all others poisoned.
inline Scene scene(int group, int kv_heads, std::vector<std::int32_t> blocks,
                   float query_size = 1) {
  return Scene({{2, 2, 0}, true, group * kv_heads, kv_heads, kDim, std::move(blocks)},
               static_cast<unsigned>(group), query_size);
}

// Units of up to 9 blocks, which warps do not share evenly.
inline DecodePlan plan_of(const Scene& scene) {
  return plan_decode(scene.tokens(),
                     {scene.shape().heads, scene.shape().kv_heads, kDecodeColumns, 1 << 16, 3});
}

// A number of K or V: m + spread, whose spread is s (c - h).
struct Number {
  double m, s, code;
  double spread() const { return s * code; }
  double magnitude() const { return std::abs(m) + std::abs(spread()); }
  double value(GpuDequantiser how) const {
    const double exact = m + spread();
    if (how != GpuDequantiser::kMatrixWhole) return exact;
    return to_float(to_fp16(static_cast<float>(exact)));
  }
};
inline Number number_of(const Scene& scene, const std::byte* page, bool keys, int token,
                        int channel) {
  const HackShape& hack = scene.hack();
  const hack::Plane& plane = keys ? hack.k : hack.v;
  const auto place = keys ? hack::key_place(plane.bits, token, channel)
                          : hack::value_place(plane.bits, kDim, token, channel);
  const auto affine = hack_arithmetic::affine_of(
      plane, kDim, page + (keys ? hack.layout.k_metadata : hack.layout.v_metadata), token, channel);
  const int code =
      hack_arithmetic::code_at(page + (keys ? 0 : hack.layout.v_codes), place, plane.bits);
  return {affine.m, affine.s, code - double{hack::middle_code(plane)}};
}

// One row of the result in the basis of codes, the maximum in units of log2.
struct Expected {
  double max = -std::numeric_limits<double>::infinity(), max_allowed = 0;
  double sum = 0, sum_allowed = 0;
  std::vector<double> out = std::vector<double>(kDim), allowed = std::vector<double>(kDim);
};

// Of one sequence's tokens for the query `y`, as kernels multiply it, times its scale.
//
// With U = 2^-23 and T tokens: a score is a float sum of 128 products and some 20 more roundings,
// each at most U of the magnitudes. A weight is off relatively by ln 2 times that, 2 U of the power
// of two and 3 U for each move of the state, and sums over tokens add T U. On the matrix unit it is
// rounded to binary16, by 2^-11, or 2^-25 where it is small; whole, outputs and sums have the same
// weights, so a value's distance from the result counts. Split, the product with s is rounded once
// more, and sums of four weights three times, which means and the state's sum have in common: what
// counts is the spread.
inline Expected expected(const Scene& scene, GpuDequantiser how, const std::vector<double>& y,
                         int sequence, int kv_head) {
  constexpr double kU = 0x1p-23, kHalf = 0x1p-11;
  const bool whole = how == GpuDequantiser::kMatrixWhole, cores = how == GpuDequantiser::kCores;
  const int blocks = scene.shape().blocks[sequence], tokens = blocks * kBlockTokens;
  const auto number = [&](bool keys, int token, int channel) {
    const std::byte* const page = scene.page(sequence, token / kBlockTokens, kv_head);
    return number_of(scene, page, keys, token % kBlockTokens, channel);
  };
  Expected row;
  if (tokens == 0) return row;
  std::vector<double> weights(tokens);
  for (int token = 0; token < tokens; ++token) {
    double magnitudes = 0;
    for (int i = 0; i < kDim; ++i) {
      const Number k = number(true, token, i);
      weights[token] += y[i] * k.value(how);
      magnitudes += std::abs(y[i]) * k.magnitude();
    }
    row.max = std::max(row.max, weights[token]);
    row.max_allowed = std::max(row.max_allowed, 150 * kU * magnitudes);
  }
  for (double& x : weights) row.sum += x = std::exp2(x - row.max);
  const double share = 2 * std::numbers::ln2 * row.max_allowed + (3 * (blocks + 100) + tokens) * kU;
  const double of_weights = cores ? 0 : (whole ? 1 : 5) * kHalf;
  row.sum_allowed = 1.02 * (share + of_weights) * row.sum + tokens * 0x1p-25;
  for (int i = 0; i < kDim; ++i) {
    double magnitudes = 0, rounded = 0;
    for (int token = 0; token < tokens; ++token) {
      const Number v = number(false, token, i);
      row.out[i] += weights[token] / row.sum * v.value(how);
      magnitudes += weights[token] / row.sum * v.magnitude();
    }
    for (int token = 0; token < tokens && !cores; ++token) {
      const Number v = number(false, token, i);
      const double counts = std::abs(whole ? v.value(how) - row.out[i] : v.spread());
      rounded += ((whole ? 1 : 6) * kHalf * weights[token] + 0x1p-24) / row.sum * counts;
    }
    row.allowed[i] = 1.02 * (rounded + 2 * share * magnitudes) + 1e-30;
  }
  // Mixing back and once more: sums of two, 8 at most each time.
  double norm = 0;
  for (const double x : row.out) norm += x * x;
  for (double& allowed : row.allowed) allowed += 20 * kU * std::sqrt(norm);
  return row;
}

// `result` is [rows][128], divided by the sums; `max` and `sum` are [rows]: of all tokens.
inline void expect_right(const Scene& scene, GpuDequantiser how, const std::vector<float>& result,
                         const std::vector<float>& max, const std::vector<float>& sum) {
  const auto& shape = scene.shape();
  Prepared prepared(scene);
  const auto* const codes = reinterpret_cast<const std::int8_t*>(prepared.codes.data());
  const auto* const rests = reinterpret_cast<const std::uint16_t*>(prepared.rests.data());
  for (std::size_t at = 0; at < scene.rows(); ++at) {
    const int sequence = static_cast<int>(at) / shape.heads;
    const int head = static_cast<int>(at) % shape.heads;
    std::vector<double> y(kDim);
    std::vector<float> own(kDim);
    for (int i = 0; i < kDim; ++i) {
      const float exact = codes[at * kDim + i] + to_float(fp16{rests[at * kDim + i]});
      const bool cores = how == GpuDequantiser::kCores;
      y[i] = prepared.scales[at] * double{cores ? exact : to_float(to_fp16(exact))};
      own[i] = result[at * kDim + i];
    }
    mix_channels_scalar(own.data(), 1, kDim);  // once more: back in the basis of codes
    const Expected row = expected(scene, how, y, sequence, head / (shape.heads / shape.kv_heads));
    const auto where = testing::Message()
                       << name_of(how) << ", sequence of " << shape.blocks[sequence]
                       << " blocks, head " << head << " of " << shape.heads;
    if (shape.blocks[sequence] == 0) {
      ASSERT_EQ(max[at], -std::numeric_limits<float>::infinity()) << where;
    } else {
      ASSERT_NEAR(max[at], row.max, row.max_allowed) << where;
    }
    ASSERT_NEAR(sum[at], row.sum, row.sum_allowed) << where;
    for (int i = 0; i < kDim; ++i) {
      ASSERT_NEAR(own[i], row.out[i], row.allowed[i]) << where << ", channel " << i;
    }
  }
}

}  // namespace kvlane::dequantise_fixture
