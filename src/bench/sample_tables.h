// What formats that are calibrated, or keep K as it is before its rotation, want of a model, made
// from sample rows instead.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/shape.h"
#include "kvlane/status.h"
#include "ops/rope_table.h"
#include "quant/kv_tables.h"

namespace kvlane {

// Angles as Llama 2 has them. head_dim is even.
RopeTable sample_rope(int head_dim, int positions);

// The tables of every format that has some, as calibration finds them in `rows`: slabs of `shape`,
// one behind another, finite, as a layer at position 0 has them. All layers get the same ones, but
// those of `zack`: made up, or those of a model, whose layers come over and over. Of `formats`
// those of `kvquant` behind `zack` have tables of their own.
Result<KvTables> sample_tables(const KvShape& shape, const RopeTable& rope,
                               const std::vector<std::uint16_t>& rows, const KvTables& zack,
                               std::span<const std::string> formats = {});

}  // namespace kvlane
