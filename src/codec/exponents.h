// Exponents of floating-point values: how often each occurs, and the codebook that follows. For
// calibration, and for encoders that have none.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "codec/codec.h"
#include "format/element.h"

namespace kvlane {

// How often each exponent occurs; the index is the value's exponent field.
using ExponentCounts = std::array<std::uint64_t, 256>;

// Adds the exponents of a run of values (not kF32), fewer than 2^56 in all, to `counts`.
void count_exponents(ElementType type, ByteView values, ExponentCounts& counts);

// How many exponents a type has, and how many of them its codebooks hold: 16, for FP8 E4M3 8.
int exponent_values(ElementType type);
int codebook_entries(ElementType type);

// The most frequent exponents, among equals the smaller ones, in ascending order; entries that the
// type's codebooks do not have are 0.
Codebook codebook_of(ElementType type, const ExponentCounts& counts);

// The share of the counted values whose exponent is in the codebook; 1 when nothing was counted.
double coverage(ElementType type, const Codebook& book, const ExponentCounts& counts);

}  // namespace kvlane
