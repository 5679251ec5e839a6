// Coding K or V of one page for attention on codes, and reading it back: the kernels of each tier.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"
#include "quant/hack_layout.h"

namespace kvlane::hack {

// Whether codes lie as those of K or as those of V.
enum class Part : std::uint8_t { kKeys, kValues };

// Half to even; or up or down by chance, so that codes are right on average. kBoth has the first.
enum class Rounding : std::uint8_t { kNearest, kStochastic };

// What the random numbers of a page follow from, besides token and channel.
struct Draw {
  std::uint32_t layer;
  std::uint32_t kv_head;
  std::uint32_t position;  // of the first token
};

// rows: [64][head_dim], finite, in the range of the metadata's type. Codes and metadata are written
// whole. All three are aligned to 64.
struct SealJob {
  Plane plane;
  Part part;
  int head_dim;
  Rounding rounding;
  Draw draw;  // for kStochastic
  const float* rows;
  std::byte* codes;
  std::byte* metadata;
};

// The other way: values as Axis says, rounded to float once. Codes and metadata may be any bytes;
// where m or s is not finite, neither are the rows. All are aligned to 64.
struct OpenJob {
  Plane plane;
  Part part;
  int head_dim;
  const std::byte* codes;
  const std::byte* metadata;
  float* rows;
};

using SealKernel = void (*)(const SealJob& job);
using OpenKernel = void (*)(const OpenJob& job);

// Normative; slow, as they know nothing of layouts but what the specification says.
void seal_scalar(const SealJob& job);
void open_scalar(const OpenJob& job);

// Null for what they have no kernel for.
SealKernel seal_kernel_avx2(const Plane& plane, Part part, Rounding rounding);
SealKernel seal_kernel_avx512(const Plane& plane, Part part, Rounding rounding);
OpenKernel open_kernel_avx2(const Plane& plane, Part part);
OpenKernel open_kernel_avx512(const Plane& plane, Part part);

// The kernels of a tier. All give the same bytes, and the same rows for any bytes, but for the sign
// and the payload of NaN.
SealKernel seal_kernel(const Plane& plane, Part part, Rounding rounding, Isa isa);
OpenKernel open_kernel(const Plane& plane, Part part, Isa isa);

// The key of random numbers: any would do.
inline constexpr std::uint64_t kDrawKey = 0x6b766c68636b7372;

// The random number of 16 bits for one value.
std::uint32_t random_bits(const SealJob& job, int token, int channel);

}  // namespace kvlane::hack
