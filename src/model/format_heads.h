// Which heads of a format's slabs a part of a model computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/model.h"
#include "quant/kv_format.h"

namespace kvlane {

// Whether slabs have heads that other ranks compute (quant/heads_together.h).
inline bool has_heads_of_others(const Model& model, const KvFormat* format) {
  return format != nullptr && format->shape().kv_heads != model.config().kv_heads;
}

// The first of the part's KV heads, counted in slabs.
inline int first_head_in_slabs(const Model& model, const KvFormat* format) {
  return has_heads_of_others(model, format) ? kv_heads_of(model.whole_config(), model.part()).first
                                            : 0;
}

}  // namespace kvlane
