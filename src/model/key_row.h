// From the product to the cache: what a row of K goes through, wherever it comes from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/model.h"
#include "ops/rotation.h"
#include "quant/kv_format.h"

namespace kvlane {

// Immutable, thread-safe; refers to the model and the format, which may be null.
class KeyRow {
 public:
  KeyRow(const Model& model, const KvFormat* format)
      : model_(model), format_(format), rotate_(rotation_kernel(model.isa())) {}

  // Norms (where the model has it) and rotates one head's K [head_dim] at `position` in place, then
  // turns it into the format's basis, if it has one.
  void finish(float* key, int layer, int kv_head, int position) const;

 private:
  const Model& model_;
  const KvFormat* const format_;
  const RotationKernel rotate_;
};

}  // namespace kvlane
