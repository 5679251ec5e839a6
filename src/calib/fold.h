// Rotations put into a checkpoint's weights: the function stays, V comes out rotated, and so do K
// and queries where nothing but a product makes them.
//
// With R of a KV head: its rows of V's projection become R^T W, and its part of the bias R^T b, so
// that its V is V R, and the columns of the output projection that belong to a query head reading
// it are multiplied by R's dual (R itself, if that is orthogonal), which takes the rotation back.
// Likewise rows of K's projection by R of K and Q, and those of its query heads by R's dual.
// Products are in double precision, rounded once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "calib/rotation.h"
#include "kvlane/status.h"
#include "model/checkpoint.h"

namespace kvlane {

// What becomes of a tensor: each by one of its members.
struct TensorFold {
  enum class Of { kQuery, kKey, kValue };
  // head_dim rows from `row` on, of one head's queries, K or V.
  struct Head {
    int layer;
    int kv_head;  // whose rotation it is
    std::int64_t row;
    Of of = Of::kValue;
  };
  std::vector<Head> heads;
  int outputs_of = -1;  // the layer whose output projection it is
};

// Whether K and queries fold: no norms of heads and no RoPE lie behind their products (OPT).
bool folds_keys(const ModelConfig& config);
// All tensors that are folded, by name.
std::map<std::string, TensorFold> tensor_folds(const ModelConfig& config);
// A layer's output projection, [hidden][heads * head_dim].
std::string output_projection(const ModelConfig& config, int layer);

// Gram matrices (ops/gram.h) of the output projection's slices, [layers][kv_heads] matrices
// [head_dim][head_dim]: for each KV head of the transposed slices of its query heads, together.
std::vector<double> output_grams(const Checkpoint& checkpoint);
// The same of each query head by itself, of one layer: [heads] matrices.
std::vector<double> output_grams_of_layer(const Checkpoint& checkpoint, int layer);

// The bytes of a folded tensor, of its type. kUnsupported when a value does not fit the type.
// Memory: the tensor, and some MB a thread.
Result<Bytes> fold(const ModelConfig& config, const TensorView& tensor, const TensorFold& how,
                   const ZackRotations& rotations);

}  // namespace kvlane
