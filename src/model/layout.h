// The tensors of a supported architecture: names as Hugging Face writes them, and shapes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace kvlane {

// Every tensor that the forward pass of `config` reads, in the order of use: embedding, layers,
// final norm, output projection (absent when it is tied). Weights of projections are [outputs,
// inputs].
std::vector<TensorSpec> model_tensors(const ModelConfig& config);

}  // namespace kvlane
