// Rotations of V put into a checkpoint's weights: the function stays, V comes out rotated.
//
// With R of a KV head: its rows of v_proj become R^T W, so that its V is V R, and the columns of
// o_proj that belong to a query head reading it are multiplied by R's dual (R itself, if that is
// orthogonal), which takes the rotation back.
// Products are in double precision, rounded once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "calib/rotation.h"
#include "kvlane/status.h"
#include "model/checkpoint.h"

namespace kvlane {

// The projections of a layer that are folded, by name.
std::string value_projection(int layer);
std::string output_projection(int layer);

// Gram matrices (ops/gram.h) of the output projection's slices, [layers][kv_heads] matrices
// [head_dim][head_dim]: for each KV head of the transposed slices of its query heads, together.
std::vector<double> output_grams(const Checkpoint& checkpoint);
// The same of each query head by itself, of one layer: [heads] matrices.
std::vector<double> output_grams_of_layer(const Checkpoint& checkpoint, int layer);

// The bytes of a folded projection, of the type of `weights`. rotations: of this layer, [kv_heads].
// kUnsupported when a value does not fit the type. Memory: the tensor, and some MB a thread.
Result<Bytes> fold_values(const ModelConfig& config, const TensorView& weights,
                          std::span<const Rotation> rotations);
Result<Bytes> fold_outputs(const ModelConfig& config, const TensorView& weights,
                           std::span<const Rotation> rotations);

}  // namespace kvlane
