// Mixing the channels of rows, so that none is larger than the others: a Hadamard transform.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

// Each run of n channels of rows [count][head_dim], with n the largest power of two that divides
// head_dim, becomes H x with H orthogonal and symmetric: products of mixed rows are those of the
// rows, and mixing twice gives the rows back, but for rounding. Sums are taken in the order of the
// usual butterflies, neighbours first, then all is divided by sqrt(n): the same bits everywhere.
void mix_channels(float* rows, int count, int head_dim);

}  // namespace kvlane
