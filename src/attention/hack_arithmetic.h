// What attention computes on codes, one number at a time: the formulas of attention/hack_page.h as
// plain loops. The scalar kernel is made of them; in double precision they are held against
// products of what the codes stand for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/hack_page.h"
#include "base/bf16.h"

namespace kvlane::hack_arithmetic {

inline int code_at(const std::byte* codes, hack::CodePlace place, int bits) {
  std::uint32_t word = 0;
  std::memcpy(&word, codes + sizeof(word) * place.word, sizeof(word));
  return static_cast<int>(word >> place.bit & ((1U << bits) - 1));
}

inline float number(hack::Meta meta, const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return meta == hack::Meta::kBf16 ? to_float(bf16{bits}) : to_float(fp16{bits});
}

// m and s of a partition; by both, m of a channel and s of a token.
struct Affine {
  float m, s;
};
inline Affine affine_of(const hack::Plane& plane, int head_dim, const std::byte* metadata,
                        int token, int channel) {
  if (plane.axis == hack::Axis::kBoth) {
    const std::byte* const scales = metadata + hack::scales_offset(head_dim);
    return {number(plane.meta, metadata + 2 * std::size_t(channel)),
            number(plane.meta, scales + 2 * std::size_t(token))};
  }
  const int entry = hack::entry_of(plane, head_dim, token, channel);
  const std::byte* const at = metadata + hack::kEntryBytes * entry;
  return {number(plane.meta, at), number(plane.meta, at + 2)};
}

// A row's query: see HackQuery.
template <class Real>
struct Query {
  const std::int8_t* codes;
  const Real* values;
  Real scale;
  const Real* sum;
  const Real* centre;
};

// The part of a row's scores that all tokens of a page have in common.
template <class Real>
Real base_score(const HackShape& shape, const Query<Real>& query, const std::byte* page) {
  Real total = 0;
  if (shape.k.axis != hack::Axis::kBoth) return total;
  for (int i = 0; i < shape.key_dim; ++i) {
    const Affine affine = affine_of(shape.k, shape.key_dim, page + shape.layout.k_metadata, 0, i);
    total = std::fma(query.values[i], Real{affine.m}, total);
  }
  return total;
}

template <class Real>
Real score(const HackShape& shape, const Query<Real>& query, const std::byte* page, int token,
           Real base) {
  const int d = shape.key_dim;
  Real total = base;
  for (int first = 0, g = 0; first < d; first += shape.key_partition(), ++g) {
    int dot = 0;
    for (int i = first; i < std::min(first + shape.key_partition(), d); ++i) {
      const hack::CodePlace place = hack::key_place(shape.k.bits, token, i);
      dot += query.codes[i] * code_at(page, place, shape.k.bits);
    }
    const Affine affine = affine_of(shape.k, d, page + shape.layout.k_metadata, token, first);
    if (shape.k.axis != hack::Axis::kBoth) {
      total = std::fma(Real{affine.m}, query.sum[g], total);
    }
    const Real product = std::fma(static_cast<Real>(dot), query.scale, query.centre[g]);
    total = std::fma(Real{affine.s}, product, total);
  }
  return total;
}

// A page's weights for one row.
template <class Real>
struct Weights {
  int codes[kBlockTokens];
  Real unit;   // of a code
  Real total;  // of all weights
};

// weights: 2^(score - M), worth `page_unit` each.
template <class Real>
Weights<Real> code_weights(const HackShape& shape, const std::byte* page, const Real* weights,
                           Real page_unit) {
  constexpr Real kMost = 255;
  const bool both = shape.v.axis == hack::Axis::kBoth;
  Weights<Real> coded{};
  Real values[kBlockTokens];
  Real most = both ? 0 : 1;
  Real sum = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    values[token] = weights[token];
    if (both) {
      values[token] *=
          affine_of(shape.v, shape.value_dim, page + shape.layout.v_metadata, token, 0).s;
      most = std::max(most, values[token]);
    }
    sum += weights[token];
  }
  const Real inverse = most > 0 ? kMost / most : 0;
  int codes = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    coded.codes[token] = static_cast<int>(std::nearbyint(values[token] * inverse));
    codes += coded.codes[token];
  }
  coded.unit = page_unit * most / kMost;
  coded.total = both ? sum * page_unit : static_cast<Real>(codes) * coded.unit;
  return coded;
}

// out += weights x V.
template <class Real>
void add_values(const HackShape& shape, const Weights<Real>& weights, const std::byte* page,
                Real* out) {
  const int d = shape.value_dim;
  const bool both = shape.v.axis == hack::Axis::kBoth;
  const Real middle = both ? hack::middle_code(shape.v) : 0;
  for (int first = 0; first < kBlockTokens; first += shape.value_partition()) {
    for (int channel = 0; channel < d; ++channel) {
      int sum = 0;
      int dot = 0;
      for (int token = first; token < first + shape.value_partition(); ++token) {
        const hack::CodePlace place = hack::value_place(shape.v.bits, d, token, channel);
        dot += weights.codes[token] * code_at(page + shape.layout.v_codes, place, shape.v.bits);
        sum += weights.codes[token];
      }
      const Affine affine = affine_of(shape.v, d, page + shape.layout.v_metadata, first, channel);
      const Real codes = static_cast<Real>(sum);
      const Real mean_weight = both ? weights.total : codes * weights.unit;
      const Real product = (static_cast<Real>(dot) - middle * codes) * weights.unit;
      out[channel] = std::fma(Real{affine.m}, mean_weight, out[channel]);
      out[channel] = std::fma(both ? Real{1} : Real{affine.s}, product, out[channel]);
    }
  }
}

}  // namespace kvlane::hack_arithmetic
