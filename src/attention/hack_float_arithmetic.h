// Attention in floats on pages of codes, one number at a time: the formulas of
// attention/hack_float_page.h as plain loops. The scalar kernels are made of them; in double
// precision one is held against the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/hack_arithmetic.h"
#include "attention/hack_float_page.h"

namespace kvlane::hack_arithmetic {

// What codes are counted from.
inline float origin_of(const hack::Plane& plane) {
  return plane.axis == hack::Axis::kBoth ? hack::middle_code(plane) : 0;
}

// A code of K or V, counted from its origin.
inline float key_code(const HackShape& shape, const std::byte* page, int token, int channel) {
  const hack::CodePlace place = hack::key_place(shape.k.bits, token, channel);
  return static_cast<float>(code_at(page, place, shape.k.bits)) - origin_of(shape.k);
}
inline float value_code(const HackShape& shape, const std::byte* page, int token, int channel) {
  const hack::CodePlace place = hack::value_place(shape.v.bits, shape.value_dim, token, channel);
  return static_cast<float>(code_at(page + shape.layout.v_codes, place, shape.v.bits)) -
         origin_of(shape.v);
}

inline Affine key_affine(const HackShape& shape, const std::byte* page, int token, int channel) {
  return affine_of(shape.k, shape.key_dim, page + shape.layout.k_metadata, token, channel);
}
inline Affine value_affine(const HackShape& shape, const std::byte* page, int token, int channel) {
  return affine_of(shape.v, shape.value_dim, page + shape.layout.v_metadata, token, channel);
}

// The score of a token; sums: of q over K's partitions.
template <class Real>
Real score_on_codes(const HackShape& shape, const Real* q, const Real* sums, const std::byte* page,
                    int token) {
  const int d = shape.key_dim;
  const bool both = shape.k.axis == hack::Axis::kBoth;
  Real total = 0;
  for (int i = 0; both && i < d; ++i) {
    total = std::fma(q[i], Real{key_affine(shape, page, token, i).m}, total);
  }
  for (int first = 0, g = 0; first < d; first += shape.key_partition(), ++g) {
    Real dot = 0;
    for (int i = first; i < std::min(first + shape.key_partition(), d); ++i) {
      dot = std::fma(q[i], Real{key_code(shape, page, token, i)}, dot);
    }
    const Affine affine = key_affine(shape, page, token, first);
    if (!both) total = std::fma(Real{affine.m}, sums[g], total);
    total = std::fma(Real{affine.s}, dot, total);
  }
  return total;
}

template <class Real>
Real score_on_values(const HackShape& shape, const Real* q, const std::byte* page, int token) {
  Real total = 0;
  for (int i = 0; i < shape.key_dim; ++i) {
    const Affine affine = key_affine(shape, page, token, i);
    const Real value = std::fma(Real{affine.s}, Real{key_code(shape, page, token, i)}, affine.m);
    total = std::fma(q[i], value, total);
  }
  return total;
}

// out += weights x V; weights of 64 tokens.
template <class Real>
void add_on_codes(const HackShape& shape, const Real* weights, const std::byte* page, Real* out) {
  const bool both = shape.v.axis == hack::Axis::kBoth;
  for (int first = 0; first < kBlockTokens; first += shape.value_partition()) {
    for (int channel = 0; channel < shape.value_dim; ++channel) {
      Real dot = 0;
      Real total = 0;
      for (int token = first; token < first + shape.value_partition(); ++token) {
        const Real scale = both ? value_affine(shape, page, token, channel).s : 1;
        dot = std::fma(weights[token] * scale, Real{value_code(shape, page, token, channel)}, dot);
        total += weights[token];
      }
      const Affine affine = value_affine(shape, page, first, channel);
      out[channel] = std::fma(Real{affine.m}, total, out[channel]);
      out[channel] = std::fma(both ? Real{1} : Real{affine.s}, dot, out[channel]);
    }
  }
}

template <class Real>
void add_on_values(const HackShape& shape, const Real* weights, const std::byte* page, Real* out) {
  for (int channel = 0; channel < shape.value_dim; ++channel) {
    Real total = 0;
    for (int token = 0; token < kBlockTokens; ++token) {
      const Affine affine = value_affine(shape, page, token, channel);
      const Real value =
          std::fma(Real{affine.s}, Real{value_code(shape, page, token, channel)}, affine.m);
      total = std::fma(weights[token], value, total);
    }
    out[channel] += total;
  }
}

}  // namespace kvlane::hack_arithmetic
