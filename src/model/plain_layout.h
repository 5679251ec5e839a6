// Where Llama has its tensors, and those who followed it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/layout.h"

namespace kvlane {

// model.layers.N.self_attn.q_proj and so on, each matrix for itself.
LayerLayout separate_layer(const ModelConfig& config, int index);
// model.embed_tokens, model.norm, lm_head; without layers.
ModelLayout plain_ends(const ModelConfig& config);
// All of it.
ModelLayout plain_layout(const ModelConfig& config);

}  // namespace kvlane
