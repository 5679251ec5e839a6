// KV format `kvquant`: K before its rotation, per channel; non-uniform levels; outliers kept apart
// (spec/slab_kvquant.md).
//
// After KVQuant (public code): K is quantised as it is before RoPE, normalised per channel by
// limits that calibration found; V per token, normalised by the token's own order statistics over
// all channels. A value is the nearest of 2^b signposts that belong to its layer and tensor
// (k-means over calibration data without outliers, weighted by squared gradients:
// calib/kv_gradients.h). With outliers=1 some 1 % of the values, those outside the limits, are kept
// in 16 bits beside the codes.
//
// How many outliers K may have, the public code says twice: its simulation, where published figures
// come from, keeps all of them; its kernel has room for 1 % of a token's values and cuts the
// others. A token that is unlike all others, as those are on which attention rests, has dozens. So
// here the room is 1 % of the slab's values, whichever tokens they belong to (room=slab), or, as
// the kernel has it, of each token's (room=token).
//
// The codes themselves, and where they lie, are in quant/kvquant_coder.h: behind `zack` there are
// others of the same kind (quant/zack_kvquant.h).
//
// Rows arrive rotated and in BF16: seal() turns them back, open_page() forth again. The first
// tokens stay in 16 bits with sink=N, in blocks of 64 tokens where the public code counts tokens.
//
// Tables for each layer and K or V ("kvquant.layers.3.k." before each name), C channels, O = 0 or 1
// for `outliers`, B = 2, 3 or 4 for `bits`:
//   oO.low [C], oO.high [C]                          K only: limits of each channel
//   oO.bB.signposts [2^B], oO.bB.values [2^B]        ascending; what is nearest, and what it stands
//                                                    for (others at 2 bits: Q-Norm)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "quant/format_text.h"
#include "quant/kv_format.h"

namespace kvlane {

// "kvquant:bits=2|3|4,outliers=0|1,room=slab|token": 4, 1 and slab by default; no room without
// outliers.
Result<std::shared_ptr<const KvFormat>> make_kvquant(FormatText text,
                                                     const KvFormatContext& context);

// How many values of K lay outside their limits and were cut to them, because there was no room
// for more outliers. slab: sealed in a kvquant format.
std::uint32_t kvquant_cut_values(const std::byte* slab);

}  // namespace kvlane
