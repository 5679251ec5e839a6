// Makes the tables that KV formats need, from what a model computes over a text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "calib/sequences.h"
#include "model/model.h"
#include "quant/kv_tables.h"

namespace kvlane {

// Tables of all formats that need some (`cachegen`, `kvquant`). Runs the model twice over `tokens`,
// all inside its vocabulary; only complete blocks of each sequence count, and there must be one,
// and at most 2^24 tokens. weights: null, or how much each channel's values count for `kvquant`
// (calib/kv_statistics.h). A value that is not finite is an error.
Result<KvTables> calibrate_tables(const Model& model, std::span<const std::int32_t> tokens,
                                  const KvTables* weights, const OnCalibrated& progress);

}  // namespace kvlane
