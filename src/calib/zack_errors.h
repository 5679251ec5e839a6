// What ZACK's choices cost, head by head: the error of attention's output when K or V of one head
// has so many dimensions in so many bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "calib/rotation.h"
#include "calib/zack_sample.h"
#include "cpu/isa.h"
#include "model/checkpoint.h"

namespace kvlane {

// Of K and of V, [layers][kv_heads][zack::kCodeBits][head_dim / 16] each: the share of the energy
// of the layer's attention, behind the output projection, that is lost when this head's K, or V,
// alone is read as codes of so many bits of its first 16, 32 ... rotated dimensions, and all else
// as it is. spec/zack.md.
struct ZackErrors {
  std::vector<float> k;
  std::vector<float> v;
};

// Of the model whose weights `checkpoint` holds; `sample` is of it, and complete. rotations: from
// it. A query reads its own block of 64 tokens as it is, in whole blocks only, so with less than
// two of them nothing is lost by anything. Empty for a head_dim that `zack` does not take. The same
// bits for any number of threads. `progress` counts layers.
Result<ZackErrors> measure_zack_errors(const Checkpoint& checkpoint, Isa isa,
                                       const ZackSample& sample, const ZackRotations& rotations,
                                       const OnCalibrated& progress);

}  // namespace kvlane
