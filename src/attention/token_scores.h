// How much queries read tokens, as rules of eviction score them (cache/eviction.h). The same bits
// on every tier: what is kept must not depend on the processor's vectors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace kvlane {

// Whose noise is wanted.
struct NoiseOf {
  std::uint32_t seed;
  int layer;
  int query_head;
  int position;  // of the query
};

// Products of a query and keys, then what they add to scores. Buffers of products have room up to
// the next multiple of kBlockTokens, which is written too. Pure functions.
struct ScoreKernels {
  // Of the query, [dim] in F32, and all keys of a block, [dim][kBlockTokens] in F32. A product is
  // the sum over channels in their order.
  void (*block_products)(const float* query, const float* keys, int dim, float* products);
  // Of the query and `count` keys, rows of [dim] in BF16. Sixteen sums, of every sixteenth channel,
  // then of each half and the other.
  void (*row_products)(const float* query, const std::uint16_t* keys, int dim, int count,
                       float* products);
  // Adds Keyformer's noise, standard Gumbel: a function of NoiseOf and of the key's position alone,
  // which is positions[i], or i where there are none.
  void (*add_noise)(const NoiseOf& noise, const std::int32_t* positions, int count,
                    float* products);
  // scores += softmax(products * scale), products becoming the probabilities.
  void (*add_probabilities)(float scale, int count, float* products, float* scores);
};

// Of a tier that the processor has.
const ScoreKernels& score_kernels(Isa isa);

extern const ScoreKernels kScoreKernelsScalar;
extern const ScoreKernels kScoreKernelsAvx2;
extern const ScoreKernels kScoreKernelsAvx512;

}  // namespace kvlane
