// Rows of activations on a GPU: embedding, norm, what follows the product of Q, K and V, and
// activation. Device code is in ops/rows_device.h and ops/qkv_device.h.
//
// Everything that arguments point to lies in memory that the stream's device can reach, until the
// stream has done the launch. Launchers return when it is in the stream; no rows launch nothing.
// They look at shapes and addresses, not at what lies there: tokens, positions, sequences and ids
// of blocks are the caller's to keep in range. A launch may be captured into a CUDA graph, and then
// runs with the tokens and positions that it finds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device.h"
#include "ops/rows_batch.h"

namespace kvlane {

// residual = rows of the table, widened.
Status embed_on_gpu(const EmbedRows& embed, const gpu::Stream& stream);

// residual += add, and out = its RMS norm, weighted and rounded. Up to kNormValuesMax values a row.
Status norm_on_gpu(const NormRows& norm, const gpu::Stream& stream);

// Q heads to `q`, K and V heads to their blocks; with `rotations` in another basis.
Status write_qkv_on_gpu(const QkvRows& qkv, const gpu::Stream& stream);

// out = silu(gate) * up, rounded.
Status silu_on_gpu(const SiluRows& silu, const gpu::Stream& stream);

// What launchers ask first: kInvalidArgument for a length of rows that is no multiple of 8 or too
// long, for an address that is no multiple of 16, and for one that is missing.
Status check_rows(const EmbedRows& embed);
Status check_rows(const NormRows& norm);
Status check_rows(const QkvRows& qkv);
Status check_rows(const SiluRows& silu);

}  // namespace kvlane
