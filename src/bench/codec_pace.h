// How fast a codec is on the slabs of a prompt, one at a time as workers do it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/block_pool.h"
#include "codec/codec.h"
#include "kvlane/status.h"
#include "plan/codec_policy.h"

namespace kvlane {

// Encodes and decodes slabs of `table`, which holds `tokens` tokens: evenly chosen ones, some
// hundred of them. Speeds follow from the middle of the slabs' times, so that what else the machine
// did in between does not count; the ratio is that of all bytes together. Planes are gathered from
// the table's pages before and are compared with what was decoded: kInternal if a bit differs.
Result<CodecPace> measure_pace(const Codec& codec, const BlockTable& table, int tokens);

}  // namespace kvlane
