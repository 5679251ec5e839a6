// From rows to CacheGen's symbols and back, without their coding: for the format and for its
// calibration.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "format/shape.h"

namespace kvlane::cachegen {

enum class Form : std::uint8_t { kCode, kPaper };

// form=paper: the first of so many tokens is an anchor, counted from the beginning of the slab.
inline constexpr int kAnchorEvery = 10;
inline constexpr int kAnchors = (kBlockTokens + kAnchorEvery - 1) / kAnchorEvery;
constexpr bool is_anchor(int token) { return token % kAnchorEvery == 0; }

// Symbols lie around a middle, which stands for zero.
inline constexpr int kAnchorMiddle = 127;
inline constexpr int kDeltaMiddle = 31;
inline constexpr int kDeltaSymbols = 2 * kDeltaMiddle + 1;
// An anchor's symbol is coded in two parts: this many low bits are taken as evenly distributed.
inline constexpr int kAnchorLowBits = 3;
inline constexpr int kAnchorSymbols = 32;  // of its other bits

// form=code: what the public code calls bins.
inline constexpr std::array kBins = {32, 16, 12};
constexpr int middle_of(int bins) { return bins / 2 - 1; }
constexpr int symbols_of(int bins) { return 2 * middle_of(bins) + 1; }

// How many bins a layer's K or V has. Layers are counted in proportion to the public code's
// settings for 32 layers (for 80 layers: to those for 80). level: 1 ... 3.
int bins_of(int level, bool is_key, int layer, int layers);

// form=paper: width of a bin, in standard deviations.
constexpr float bin_width(int layer, int layers) {
  return 0.5F * static_cast<float>(1 + 3 * layer / layers);
}

// A token whose largest magnitude is below this is all zeros: its reciprocal might overflow.
inline constexpr float kScaleLeast = 0x1p-100F;

// What one token's values are divided by.
struct Scale {
  Scale(float largest, int middle_symbol)
      : middle(middle_symbol),
        largest_value(largest >= kScaleLeast ? largest : 0),
        per_value(largest >= kScaleLeast ? static_cast<float>(middle_symbol) / largest : 0) {}

  int middle;
  float largest_value;
  float per_value;
};

// Rounds to the nearest whole number, half to even. |x| < 2^22.
inline int round_even(float x) {
  constexpr float kShift = 0x1.8p23F;
  return static_cast<int>((x + kShift) - kShift);
}

inline int symbol_of(float x, const Scale& scale) {
  return scale.middle + round_even(x * scale.per_value);
}
inline float value_of(int symbol, int middle, float largest_value) {
  return static_cast<float>(symbol - middle) / static_cast<float>(middle) * largest_value;
}

// A distance from the anchor, in steps; those far out are cut. `per_step` is 0 for a channel that
// never changes.
inline int delta_symbol_of(float distance, float per_step) {
  float steps = distance * per_step;
  steps = steps >= -kDeltaMiddle ? steps : -kDeltaMiddle;  // also of infinity times nothing
  steps = steps > kDeltaMiddle ? kDeltaMiddle : steps;
  return kDeltaMiddle + round_even(steps);
}
inline float delta_of(int symbol, float step) {
  return static_cast<float>(symbol - kDeltaMiddle) * step;
}

// The largest magnitude of one token's K or V over all heads and channels. rows: as in
// KvFormat::seal().
float largest_magnitude(const KvShape& shape, const std::uint16_t* rows, bool is_key, int token);

// How the symbols of one page plane come about. steps, steps_inverse: [head_dim] of this head,
// form=paper.
struct PlaneRule {
  Form form = Form::kCode;
  int middle = 0;  // form=code
  std::span<const float> steps;
  std::span<const float> steps_inverse;
};

// values: [64][head_dim] BF16, finite. largest: [64] of form=code, [kAnchors] of form=paper.
// symbols: [64][stride].
void quantise_plane(const PlaneRule& rule, std::span<const float> largest,
                    const std::uint16_t* values, int head_dim, std::size_t stride,
                    std::uint8_t* symbols);

// 1 / step, or 0 where the step is too small to divide by.
constexpr float step_inverse(float step) { return step >= kScaleLeast ? 1.0F / step : 0.0F; }

}  // namespace kvlane::cachegen
