// From the product to the cache: what rows of K go through, wherever they come from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "model/model.h"
#include "ops/rotation.h"
#include "quant/kv_format.h"

namespace kvlane {

// Immutable, thread-safe; refers to the model and the format, which may be null.
class KeyRows {
 public:
  KeyRows(const Model& model, const KvFormat* format)
      : model_(model), format_(format), rotate_(rotation_kernel(model.isa())) {}

  // First, of each token: norms (where the model has it) K of all KV heads [kv_heads][head_dim] and
  // rotates it by `position`, in place.
  void place(float* keys, int layer, int position) const;
  // Then, of several tokens, `stride` numbers apart: turns it into the format's basis, if it has
  // one, in place. A row's bits do not depend on how many there are.
  void turn(float* keys, int layer, int tokens, std::size_t stride) const;

 private:
  const Model& model_;
  const KvFormat* const format_;
  const RotationKernel rotate_;
};

}  // namespace kvlane
