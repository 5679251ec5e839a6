// Where Llama has its tensors, and those who followed it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/layout.h"

namespace kvlane {

// Of whole matrices NAME.weight with so many outputs each, one behind the other, and NAME.bias.
ProductLayout whole_product(const std::vector<std::pair<std::string, int>>& parts, bool bias);
// model.layers.N.self_attn.q_proj and so on, each matrix for itself.
LayerLayout separate_layer(const ModelConfig& config, int index);
// model.embed_tokens, model.norm, lm_head; without layers.
ModelLayout plain_ends(const ModelConfig& config);
// All of it.
ModelLayout plain_layout(const ModelConfig& config);

}  // namespace kvlane
