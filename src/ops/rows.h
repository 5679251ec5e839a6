// Operations on rows of activations: norms, rotary embeddings, activation. Row by row, so results
// do not depend on how many rows there are; sums have a fixed order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/bf16.h"
#include "format/element.h"

namespace kvlane {

// A row of activations in the type the next product reads: BF16 or F32.
void store_row(const float* row, int n, ElementType type, void* destination);

// y = x / sqrt(mean(x^2) + eps) * weight, for one row of n values. `x` and `y` may be the same.
void rms_norm(const float* x, const float* weight, float eps, int n, float* y);

// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, likewise.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int n, float* y);

// x += y.
void add_row(float* x, const float* y, int n);

// y[i] = silu(gate[i]) * up[i].
void silu_multiply(const float* gate, const float* up, int n, float* y);

// In place: max(x, 0), and x times the share of a normal distribution that is below x.
void relu(float* x, int n);
void gelu(float* x, int n);

// cos and sin of one position's rotary angles, [head_dim / 2] each.
struct RopeAngles {
  const float* cos;
  const float* sin;
};

// Rotates one head in place, pairs (i, i + head_dim / 2), as Hugging Face's checkpoints expect.
void rope(float* head, RopeAngles angles, int head_dim);

}  // namespace kvlane
