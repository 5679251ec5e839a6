// Attention in the complete form of HACK's paper, one number at a time: the formulas of
// attention/hack_complete_page.h as plain loops. The scalar kernel is made of them; in double
// precision they are held against products of what codes stand for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "attention/hack_arithmetic.h"
#include "attention/hack_complete_page.h"

namespace kvlane::hack_arithmetic {

// What codes of a partition of a query or of weights stand for.
template <class Real>
struct CodedPartition {
  Real origin;  // a
  Real unit;    // e
  Real sum;     // X
};

// Where all are alike, or nearly so, there is no unit.
template <class Real>
CodedPartition<Real> code_partition(std::span<const Real> x, std::int8_t* codes) {
  const auto [least, greatest] = std::minmax_element(x.begin(), x.end());
  const Real range = *greatest - *least;
  const Real unit = range / 255 < std::numeric_limits<float>::min() ? 0 : range / 255;
  const Real inverse = unit > 0 ? 255 / range : 0;
  const Real origin = std::fma(Real{128}, unit, *least);
  int sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int code = static_cast<int>(std::nearbyint((x[i] - *least) * inverse)) - 128;
    codes[i] = static_cast<std::int8_t>(code);
    sum += code;
  }
  const Real all = unit * static_cast<Real>(sum);
  return {origin, unit, std::fma(static_cast<Real>(x.size()), origin, all)};
}

inline int sum_at(const hack::Plane& plane, int head_dim, const std::byte* sums, int entry) {
  if (hack::sum_bytes(plane, head_dim) == 1) return std::to_integer<int>(sums[entry]);
  std::uint16_t sum = 0;
  std::memcpy(&sum, sums + 2 * entry, sizeof(sum));
  return sum;
}

// One partition's part of a product: `dot` is the sum of u c, `codes` that of c.
template <class Real>
Real complete_product(const CodedPartition<Real>& x, Affine y, int dot, int codes, Real total) {
  total = std::fma(Real{y.m}, x.sum, total);
  const Real product =
      std::fma(static_cast<Real>(dot), x.unit, x.origin * static_cast<Real>(codes));
  return std::fma(Real{y.s}, product, total);
}

// query: of each partition of K; sums: of K's codes.
template <class Real>
Real score_complete(const HackShape& shape, const std::int8_t* codes,
                    const CodedPartition<Real>* query, const std::byte* page, const std::byte* sums,
                    int token) {
  const int d = shape.key_dim;
  Real total = 0;
  for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
    int dot = 0;
    for (int i = first; i < std::min(first + shape.k.partition, d); ++i) {
      dot += codes[i] * code_at(page, hack::key_place(shape.k.bits, token, i), shape.k.bits);
    }
    const Affine affine = affine_of(shape.k, d, page + shape.layout.k_metadata, token, first);
    const int entry = hack::entry_of(shape.k, d, token, first);
    total = complete_product(query[g], affine, dot, sum_at(shape.k, d, sums, entry), total);
  }
  return total;
}

// out += weights x V. weights: of each partition of V; sums: of V's codes.
template <class Real>
void add_complete(const HackShape& shape, const std::int8_t* codes,
                  const CodedPartition<Real>* weights, const std::byte* page, const std::byte* sums,
                  Real* out) {
  const int d = shape.value_dim;
  for (int first = 0, g = 0; first < kBlockTokens; first += shape.v.partition, ++g) {
    for (int channel = 0; channel < d; ++channel) {
      int dot = 0;
      for (int token = first; token < first + shape.v.partition; ++token) {
        const hack::CodePlace place = hack::value_place(shape.v.bits, d, token, channel);
        dot += codes[token] * code_at(page + shape.layout.v_codes, place, shape.v.bits);
      }
      const Affine affine = affine_of(shape.v, d, page + shape.layout.v_metadata, first, channel);
      const int entry = hack::entry_of(shape.v, d, first, channel);
      const int sum = sum_at(shape.v, d, sums, entry);
      out[channel] = complete_product(weights[g], affine, dot, sum, out[channel]);
    }
  }
}

}  // namespace kvlane::hack_arithmetic
