// Attention on codes in plain C++: the judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/hack_page.h"
#include "base/bf16.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

using hack::CodePlace;
using hack::Plane;

constexpr float kQueryMost = 127;
constexpr float kWeightMost = 255;

int code_at(const std::byte* codes, CodePlace place, int bits) {
  std::uint32_t word = 0;
  std::memcpy(&word, codes + sizeof(word) * place.word, sizeof(word));
  return static_cast<int>(word >> place.bit & ((1U << bits) - 1));
}

float number(hack::Meta meta, const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return meta == hack::Meta::kBf16 ? to_float(bf16{bits}) : to_float(fp16{bits});
}

// m and s of a partition; by both, m of a channel and s of a token.
struct Affine {
  float m, s;
};
Affine affine_of(const HackShape& shape, const Plane& plane, const std::byte* metadata, int token,
                 int channel) {
  if (plane.axis == hack::Axis::kBoth) {
    const std::byte* const scales = metadata + hack::scales_offset(shape.head_dim);
    return {number(plane.meta, metadata + 2 * std::size_t(channel)),
            number(plane.meta, scales + 2 * std::size_t(token))};
  }
  const int entry = hack::entry_of(plane, shape.head_dim, token, channel);
  const std::byte* const at = metadata + hack::kEntryBytes * entry;
  return {number(plane.meta, at), number(plane.meta, at + 2)};
}

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.head_dim;
  const bool both = shape.k.axis == hack::Axis::kBoth;
  for (int row = 0; row < rows; ++row) {
    float* const q = to.values[row];
    for (int i = 0; i < d; ++i) {
      float x = to_float(bf16{query.q[row][i]});
      for (int part = 1; part < query.parts; ++part) {
        x += to_float(bf16{query.q[row][part * d + i]});
      }
      q[i] = x * query.scale;
    }
    if (shape.mix) mix_channels(q, 1, d);
    float most = 0;
    for (int i = 0; i < d; ++i) most = std::max(most, std::abs(q[i]));
    const float scale = most / kQueryMost;
    const float inverse = most > 0 ? kQueryMost / most : 0;
    to.scale[row] = scale;
    for (int first = 0, g = 0; first < d; first += shape.key_partition(), ++g) {
      float sum = 0;
      int codes = 0;
      for (int i = first; i < std::min(first + shape.key_partition(), d); ++i) {
        const auto code = static_cast<int>(std::nearbyint(q[i] * inverse));
        to.codes[row][i] = static_cast<std::int8_t>(code);
        sum += q[i];
        codes += code;
      }
      to.sum[row][g] = sum;
      to.centre[row][g] =
          hack::middle_code(shape.k) * ((both ? 0 : sum) - scale * static_cast<float>(codes));
    }
  }
}

// The part of a row's scores that is the same for all tokens of a page.
float base_score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page) {
  float total = 0;
  if (shape.k.axis != hack::Axis::kBoth) return total;
  for (int i = 0; i < shape.head_dim; ++i) {
    const Affine affine = affine_of(shape, shape.k, page + shape.layout.k_metadata, 0, i);
    total = std::fma(query.values[row][i], affine.m, total);
  }
  return total;
}

float score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
            int token, float base) {
  const int d = shape.head_dim;
  float total = base;
  for (int first = 0, g = 0; first < d; first += shape.key_partition(), ++g) {
    int dot = 0;
    for (int i = first; i < std::min(first + shape.key_partition(), d); ++i) {
      const CodePlace place = hack::key_place(shape.k.bits, token, i);
      dot += query.codes[row][i] * code_at(page, place, shape.k.bits);
    }
    const Affine affine = affine_of(shape, shape.k, page + shape.layout.k_metadata, token, first);
    const float product = std::fma(static_cast<float>(dot), query.scale[row], query.centre[row][g]);
    if (shape.k.axis != hack::Axis::kBoth) {
      total = std::fma(affine.m, query.sum[row][g], total);
    }
    total = std::fma(affine.s, product, total);
  }
  return total;
}

// A page's weights for one row, in integers and in what they are worth.
struct Weights {
  int codes[kBlockTokens];
  float unit;   // of a code
  float total;  // of all weights
};

// weights: 2^(score - M), worth `page_unit` each.
Weights code_weights(const HackShape& shape, const std::byte* page, const float* weights,
                     float page_unit) {
  const bool both = shape.v.axis == hack::Axis::kBoth;
  Weights coded{};
  float values[kBlockTokens];
  float most = both ? 0 : 1;
  float sum = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    values[token] = weights[token];
    if (both) {
      values[token] *= affine_of(shape, shape.v, page + shape.layout.v_metadata, token, 0).s;
      most = std::max(most, values[token]);
    }
    sum += weights[token];
  }
  const float inverse = most > 0 ? kWeightMost / most : 0;
  int codes = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    coded.codes[token] = static_cast<int>(std::nearbyint(values[token] * inverse));
    codes += coded.codes[token];
  }
  coded.unit = page_unit * most / kWeightMost;
  coded.total = both ? sum * page_unit : static_cast<float>(codes) * coded.unit;
  return coded;
}

// out += weights x V.
void add_values(const HackShape& shape, const Weights& weights, const std::byte* page, float* out) {
  const int d = shape.head_dim;
  const bool both = shape.v.axis == hack::Axis::kBoth;
  const float middle = both ? hack::middle_code(shape.v) : 0;
  for (int first = 0; first < kBlockTokens; first += shape.value_partition()) {
    for (int channel = 0; channel < d; ++channel) {
      int sum = 0;
      int dot = 0;
      for (int token = first; token < first + shape.value_partition(); ++token) {
        const CodePlace place = hack::value_place(shape.v.bits, d, token, channel);
        dot += weights.codes[token] * code_at(page + shape.layout.v_codes, place, shape.v.bits);
        sum += weights.codes[token];
      }
      const Affine affine =
          affine_of(shape, shape.v, page + shape.layout.v_metadata, first, channel);
      const auto codes = static_cast<float>(sum);
      const float mean_weight = both ? weights.total : codes * weights.unit;
      const float product = (static_cast<float>(dot) - middle * codes) * weights.unit;
      out[channel] = std::fma(affine.m, mean_weight, out[channel]);
      out[channel] = std::fma(both ? 1.0F : affine.s, product, out[channel]);
    }
  }
}

void attend(const HackShape& shape, const HackQuery& query, const std::byte* page,
            std::span<const std::byte> /*next*/, StateTile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    const float base = base_score(shape, query, row, page);
    float scores[kBlockTokens];
    for (int token = 0; token < kBlockTokens; ++token) {
      scores[token] = score(shape, query, row, page, token, base);
    }
    const float page_max = *std::max_element(scores, scores + kBlockTokens);
    const float max = std::max(tile.max[row], page_max);
    for (float& x : scores) x = std::exp2(x - page_max);
    const Weights weights = code_weights(shape, page, scores, std::exp2(page_max - max));
    const float keep = std::exp2(tile.max[row] - max);
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + weights.total;
    float* const out = tile.out + row * shape.head_dim;
    for (int i = 0; i < shape.head_dim; ++i) out[i] *= keep;
    add_values(shape, weights, page, out);
  }
}

}  // namespace

HackKernel hack_kernel_scalar() { return {prepare, attend}; }

}  // namespace kvlane
