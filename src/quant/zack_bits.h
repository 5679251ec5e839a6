// Which dimensions of each head are kept in how many bits, for a budget of bytes: more where
// leaving something out costs most (spec/slab_zack.md, section 6).
//
// Calibration has measured what each choice costs: the error of attention's output when K or V of
// one head alone has so many dimensions in so many bits. From the cheapest choice of every plane on
// the step is taken, again and again, that saves most error a byte, until the next does not fit:
// the choices of least error in total whose bytes are on the lower convex hull of all choices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvlane/status.h"

namespace kvlane::zack {

// Numbers of bits there are, each a third of a head's errors.
inline constexpr std::array kCodeBits = {2, 4, 8};

// K or V of a head.
struct PlaneCodes {
  int width;  // dimensions that are kept, a multiple of kWidthStep
  int bits;   // of each

  friend bool operator==(const PlaneCodes&, const PlaneCodes&) = default;
};

// Of K and V of a head.
struct HeadCodes {
  PlaneCodes k;
  PlaneCodes v;
};

// Errors of K and of V of the heads of all layers, [heads][kCodeBits][head_dim / kWidthStep] each:
// the last index is that of the width, from the least on. Finite and not negative.
struct Errors {
  int head_dim;  // a multiple of kWidthStep
  std::span<const float> k;
  std::span<const float> v;
};

// What codes of 64 tokens take on the wire, with all that belongs to them.
std::size_t plane_bytes(PlaneCodes codes);

// budget: bits a value of all head_dim dimensions, in parts of kShareParts. kInvalidArgument
// when that is less than the least widths in the fewest bits take, or for errors that cannot be.
// [heads]
Result<std::vector<HeadCodes>> choose_codes(const Errors& errors, std::int64_t budget);

}  // namespace kvlane::zack
