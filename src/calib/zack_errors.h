// What ZACK's choices cost, head by head: the error of attention's output when K or V of one head
// has so many dimensions in so many bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calib/rotation.h"
#include "calib/sequences.h"
#include "model/checkpoint.h"
#include "model/model.h"

namespace kvlane {

// Of K and of V, [layers][kv_heads][zack::kCodeBits][head_dim / 16] each: the share of the energy
// of the layer's attention, behind the output projection, that is lost when this head's K, or V,
// alone is read as codes of so many bits of its first 16, 32 ... rotated dimensions, and all else
// as it is. spec/zack.md.
struct ZackErrors {
  std::vector<float> k;
  std::vector<float> v;
};

// Tokens that errors are measured over, as short sequences: attention is computed once for each
// choice.
inline constexpr int kErrorSequences = 4;
inline constexpr int kErrorSequence = 512;

// Runs the model, whose weights `checkpoint` holds, over the first of `tokens`, which are inside
// its vocabulary. rotations: from it. A query reads its own block of 64 tokens as it is, in whole
// blocks only, so with less than two of them nothing is lost by anything. Empty for a head_dim that
// `zack` does not take. The same bits for any
// number of threads. Memory: the queries of a sequence in all layers.
Result<ZackErrors> measure_zack_errors(const Model& model, const Checkpoint& checkpoint,
                                       std::span<const std::int32_t> tokens,
                                       const ZackRotations& rotations,
                                       const OnCalibrated& progress);

}  // namespace kvlane
