// The tensors of one layer and the members they become: the one list for all who load them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvlane/status.h"
#include "model/config.h"
#include "model/layout.h"

namespace kvlane {

// Calls norm(layout, n, part) and product(layout, inputs, part) for each member of `layer` that the
// model has, until one fails.
template <class Layer, class Norm, class Product>
Status for_each_part_of_layer(const ModelConfig& config, const LayerLayout& layout, Layer& layer,
                              const Norm& norm, const Product& product) {
  KVLANE_TRY(norm(layout.attention_norm, config.hidden, layer.attention_norm));
  if (config.qk_norm) {
    KVLANE_TRY(norm(layout.q_norm, config.head_dim, layer.q_norm));
    KVLANE_TRY(norm(layout.k_norm, config.head_dim, layer.k_norm));
  }
  KVLANE_TRY(product(layout.qkv, config.hidden, layer.qkv));
  KVLANE_TRY(product(layout.attention_out, config.heads * config.head_dim, layer.attention_out));
  KVLANE_TRY(norm(layout.ffn_norm, config.hidden, layer.ffn_norm));
  KVLANE_TRY(product(layout.ffn_in, config.hidden, layer.ffn_in));
  return product(layout.ffn_out, config.ffn, layer.ffn_out);
}

}  // namespace kvlane
