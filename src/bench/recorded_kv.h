// KV of a large model's shape with a small trained model's values: random numbers would flatter
// codecs or ruin them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "cache/block_pool.h"
#include "model/model.h"

namespace kvlane {

// Computes `tokens` with the model, in sequences as long as its context, and fills `table` (rows up
// to `rows`, for which it has room) with the K and V that came of them: each channel of a head is
// one channel of the model's, each layer one of its layers, in order; tokens are shifted from head
// to head and from layer to layer, so that no two slabs are alike. Takes memory for the KV of all
// `tokens`.
Status fill_with_recorded_kv(const Model& model, std::span<const std::int32_t> tokens,
                             BlockTable& table, int rows);

}  // namespace kvlane
