// Greedy choice on a GPU. The full sampler (ops/sampling.h) stays on the CPU, to which rows of
// logits are copied that want it: bans, penalties, draws and lists of likely tokens are no work for
// a launch. Device code is in ops/greedy_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device.h"
#include "ops/greedy_batch.h"

namespace kvlane {

// Two launches. Everything that `rows` points to lies in memory that the stream's device can reach,
// until the stream has done them; greedy.parts is theirs until then. Returns when they are in the
// stream, where a CUDA graph may capture them; no rows launch nothing. kInvalidArgument as
// check_greedy() says.
Status greedy_on_gpu(const GreedyRows& rows, const gpu::Stream& stream);

// kInvalidArgument for a vocabulary without tokens or of more than kGreedyVocabMax, for addresses
// that are missing, and for logits that do not begin at a multiple of 16 bytes.
Status check_greedy(const GreedyRows& rows);
inline constexpr int kGreedyVocabMax = 1 << 24;

}  // namespace kvlane
