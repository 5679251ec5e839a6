// How much queries read tokens, as rules of eviction score them (cache/eviction.h). One
// implementation, the same on every tier: what is kept must not depend on the processor's vectors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "cache/eviction.h"

namespace kvlane {

// Products of a query, [dim] in F32, and `count` keys, rows of [dim] in BF16.
void key_products(const float* query, const std::uint16_t* keys, int dim, int count,
                  float* products);

// Whose probabilities are wanted.
struct ScoredQuery {
  const EvictionRule* rule;
  int layer;
  int query_head;
  int position;
  int step;  // 0 in the prompt, then 1, 2, ...
};

// Makes of a query's products, scaled by 1 / sqrt(head_dim), what it adds to scores. Product i is
// of the key at positions[i], or at position i where there are no positions.
void to_probabilities(const ScoredQuery& query, std::span<const std::int32_t> positions,
                      std::span<float> products);

}  // namespace kvlane
