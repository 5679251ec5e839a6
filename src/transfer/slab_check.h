// Whether a frame belongs to a transfer: both sides ask, the sender before it keeps a frame, the
// receiver before it hands one on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "format/frame.h"
#include "transfer/message.h"

namespace kvlane {

// Which slab of the transfer the frame holds, or kCorrupt with the first thing that does not agree
// with `model` and `begin`: spec/transfer.md section 7.
Result<SlabName> check_slab(const FrameHeader& frame, const ModelIdentity& model,
                            const TransferBegin& begin);

// Slabs of a transfer, and the index of one of them among all: layer by layer.
std::uint32_t slab_count(const TransferBegin& begin);
std::uint32_t slab_index(const SlabName& slab, const TransferBegin& begin);
SlabName slab_at(std::uint32_t index, const TransferBegin& begin);

}  // namespace kvlane
