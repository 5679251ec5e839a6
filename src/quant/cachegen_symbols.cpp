// CacheGen's quantisers.
// SPDX-License-Identifier: Apache-2.0
#include "quant/cachegen_symbols.h"

#include <algorithm>

#include "base/bf16.h"
#include "quant/slab_rows.h"

namespace kvlane::cachegen {
namespace {

void quantise_code(const PlaneRule& rule, std::span<const float> largest,
                   const std::uint16_t* values, int head_dim, std::size_t stride,
                   std::uint8_t* symbols) {
  for (int token = 0; token < kBlockTokens; ++token) {
    const Scale scale(largest[token], rule.middle);
    for (int i = 0; i < head_dim; ++i) {
      symbols[token * stride + i] = static_cast<std::uint8_t>(
          symbol_of(to_float(bf16{values[std::size_t(token) * head_dim + i]}), scale));
    }
  }
}

// Distances are taken from the anchor as it will be read, so that errors do not add up.
void quantise_paper(const PlaneRule& rule, std::span<const float> largest,
                    const std::uint16_t* values, int head_dim, std::size_t stride,
                    std::uint8_t* symbols) {
  for (int token = 0; token < kBlockTokens; ++token) {
    const Scale scale(largest[token / kAnchorEvery], kAnchorMiddle);
    const std::uint16_t* const row = values + std::size_t(token) * head_dim;
    std::uint8_t* const out = symbols + token * stride;
    const std::uint8_t* const anchor = symbols + (token - token % kAnchorEvery) * stride;
    for (int i = 0; i < head_dim; ++i) {
      const float x = to_float(bf16{row[i]});
      if (is_anchor(token)) {
        out[i] = static_cast<std::uint8_t>(symbol_of(x, scale));
      } else {
        const float from = value_of(anchor[i], kAnchorMiddle, scale.largest_value);
        out[i] = static_cast<std::uint8_t>(delta_symbol_of(x - from, rule.steps_inverse[i]));
      }
    }
  }
}

}  // namespace

int bins_of(int level, bool is_key, int layer, int layers) {
  const bool large = layers >= 80;
  const auto part = [&](int of_32, int of_80) {
    return large ? (layers * of_80 + 40) / 80 : std::max(1, (layers * of_32 + 16) / 32);
  };
  constexpr int kKeyBins[3][3] = {{16, 16, 12}, {32, 16, 16}, {32, 32, 32}};
  constexpr int kValueBins[3][2] = {{16, 12}, {32, 16}, {32, 32}};
  if (!is_key) return kValueBins[level - 1][layer >= part(2, 20)];
  return kKeyBins[level - 1][(layer >= part(10, 40)) + (layer >= part(20, 60))];
}

float largest_magnitude(const KvShape& shape, const std::uint16_t* rows, bool is_key, int token) {
  // Magnitudes of BF16 are ordered as their bits are.
  std::uint16_t largest = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const std::uint16_t* const row = slab_row(shape, rows, head, is_key, token);
    for (int i = 0; i < shape.head_dim; ++i) {
      largest = std::max(largest, static_cast<std::uint16_t>(row[i] & 0x7FFF));
    }
  }
  return to_float(bf16{largest});
}

void quantise_plane(const PlaneRule& rule, std::span<const float> largest,
                    const std::uint16_t* values, int head_dim, std::size_t stride,
                    std::uint8_t* symbols) {
  if (rule.form == Form::kCode) {
    quantise_code(rule, largest, values, head_dim, stride, symbols);
  } else {
    quantise_paper(rule, largest, values, head_dim, stride, symbols);
  }
}

}  // namespace kvlane::cachegen
