// Attention on codes in plain C++: the judge of the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/hack_page.h"
#include "base/bf16.h"

namespace kvlane {
namespace {

using hack::CodePlace;
using hack::Plane;

constexpr float kQueryMost = 127;
constexpr float kWeightMost = 255;

// The mean of all codes.
float middle(const Plane& plane) { return static_cast<float>((1 << plane.bits) - 1) / 2; }

int code_at(const std::byte* codes, CodePlace place, int bits) {
  std::uint32_t word = 0;
  std::memcpy(&word, codes + sizeof(word) * place.word, sizeof(word));
  return static_cast<int>(word >> place.bit & ((1U << bits) - 1));
}

struct Affine {
  float m, s;
};
Affine affine_of(const std::byte* metadata, const Plane& plane, int entry) {
  std::uint16_t pair[2];
  std::memcpy(pair, metadata + hack::kEntryBytes * entry, sizeof(pair));
  if (plane.meta == hack::Meta::kBf16) return {to_float(bf16{pair[0]}), to_float(bf16{pair[1]})};
  return {to_float(fp16{pair[0]}), to_float(fp16{pair[1]})};
}

void prepare(const HackShape& shape, const PageQuery& query, int rows, HackQuery& to) {
  const int d = shape.head_dim;
  for (int row = 0; row < rows; ++row) {
    float q[kTileHeadDimMax];
    float most = 0;
    for (int i = 0; i < d; ++i) {
      float x = to_float(bf16{query.q[row][i]});
      for (int part = 1; part < query.parts; ++part) {
        x += to_float(bf16{query.q[row][part * d + i]});
      }
      q[i] = x * query.scale;
      most = std::max(most, std::abs(q[i]));
    }
    const float scale = most / kQueryMost;
    const float inverse = most > 0 ? kQueryMost / most : 0;
    to.scale[row] = scale;
    for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
      float sum = 0;
      int codes = 0;
      for (int i = first; i < std::min(first + shape.k.partition, d); ++i) {
        const auto code = static_cast<int>(std::nearbyint(q[i] * inverse));
        to.codes[row][i] = static_cast<std::int8_t>(code);
        sum += q[i];
        codes += code;
      }
      to.sum[row][g] = sum;
      to.centre[row][g] = middle(shape.k) * (sum - scale * static_cast<float>(codes));
    }
  }
}

float score(const HackShape& shape, const HackQuery& query, int row, const std::byte* page,
            int token) {
  const int d = shape.head_dim;
  float total = 0;
  for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
    int dot = 0;
    for (int i = first; i < std::min(first + shape.k.partition, d); ++i) {
      const CodePlace place = hack::key_place(shape.k.bits, token, i);
      dot += query.codes[row][i] * code_at(page, place, shape.k.bits);
    }
    const Affine affine = affine_of(page + shape.layout.k_metadata, shape.k,
                                    hack::entry_of(shape.k, d, token, first));
    const float product = std::fma(static_cast<float>(dot), query.scale[row], query.centre[row][g]);
    total = std::fma(affine.s, product, std::fma(affine.m, query.sum[row][g], total));
  }
  return total;
}

// out += weights x V, in units of `unit` a weight.
void add_values(const HackShape& shape, const int* weights, float unit, const std::byte* page,
                float* out) {
  const int d = shape.head_dim;
  for (int first = 0; first < kBlockTokens; first += shape.v.partition) {
    for (int channel = 0; channel < d; ++channel) {
      int sum = 0;
      int dot = 0;
      for (int token = first; token < first + shape.v.partition; ++token) {
        const CodePlace place = hack::value_place(shape.v.bits, d, token, channel);
        dot += weights[token] * code_at(page + shape.layout.v_codes, place, shape.v.bits);
        sum += weights[token];
      }
      const Affine affine = affine_of(page + shape.layout.v_metadata, shape.v,
                                      hack::entry_of(shape.v, d, first, channel));
      out[channel] = std::fma(affine.m, static_cast<float>(sum) * unit, out[channel]);
      out[channel] = std::fma(affine.s, static_cast<float>(dot) * unit, out[channel]);
    }
  }
}

void attend(const HackShape& shape, const HackQuery& query, const std::byte* page,
            std::span<const std::byte> /*next*/, StateTile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    float scores[kBlockTokens];
    for (int token = 0; token < kBlockTokens; ++token) {
      scores[token] = score(shape, query, row, page, token);
    }
    const float page_max = *std::max_element(scores, scores + kBlockTokens);
    const float max = std::max(tile.max[row], page_max);
    int weights[kBlockTokens];
    int sum = 0;
    for (int token = 0; token < kBlockTokens; ++token) {
      const float weight = std::exp2(scores[token] - page_max) * kWeightMost;
      weights[token] = static_cast<int>(std::nearbyint(weight));
      sum += weights[token];
    }
    const float unit = std::exp2(page_max - max) / kWeightMost;
    const float keep = std::exp2(tile.max[row] - max);
    tile.max[row] = max;
    tile.sum[row] = tile.sum[row] * keep + static_cast<float>(sum) * unit;
    float* const out = tile.out + row * shape.head_dim;
    for (int i = 0; i < shape.head_dim; ++i) out[i] *= keep;
    add_values(shape, weights, unit, page, out);
  }
}

}  // namespace

HackKernel hack_kernel_scalar() { return {prepare, attend}; }

}  // namespace kvlane
