// Sealing and opening K or V of one page with linear codes: the kernels of each tier.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"
#include "quant/linear_layout.h"

namespace kvlane::linear {

// rows: [64][head_dim] in BF16, finite, and at most kFp16Max where the entries have FP16. Codes and
// metadata are written whole; both are aligned to 64.
struct SealJob {
  Plane plane;
  int head_dim;
  const std::uint16_t* rows;
  std::byte* codes;
  std::byte* metadata;
};

// The other way. Codes and metadata may be any bytes. rows is aligned to 2.
struct OpenJob {
  Plane plane;
  int head_dim;
  const std::byte* codes;
  const std::byte* metadata;
  std::uint16_t* rows;
};

using SealKernel = void (*)(const SealJob& job);
using OpenKernel = void (*)(const OpenJob& job);

// Normative; slow, as they know nothing of layouts but what the specification says.
void seal_scalar(const SealJob& job);
void open_scalar(const OpenJob& job);
// Opens one group only: what vectors leave to the scalar code.
void open_group_scalar(const OpenJob& job, int entry);

// Null for a plane they have no kernel for.
SealKernel seal_kernel_avx2(const Plane& plane);
OpenKernel open_kernel_avx2(const Plane& plane);
SealKernel seal_kernel_avx512(const Plane& plane);
// Of small floating-point codes; of integers.
OpenKernel open_floats_avx512(const Plane& plane);
OpenKernel open_integers_avx512_bf16(const Plane& plane);

// The kernels of a tier. All give the same bytes and the same rows, for any bytes of a slab.
SealKernel seal_kernel(const Plane& plane, Isa isa);
OpenKernel open_kernel(const Plane& plane, Isa isa);

}  // namespace kvlane::linear
