// Makes the tables that KV formats need, from what a model computes over a text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "calib/sequences.h"
#include "model/model.h"
#include "quant/kv_tables.h"
#include "quant/zack.h"

namespace kvlane {

// How much a value counts when signposts of `kvquant` are sought: by the square of its gradient, as
// KVQuant does, or as much as any other, which is several times as fast.
enum class SignpostWeights { kGradients, kNone };

// Tables of all formats that need some (`cachegen`, `kvquant`). Runs the model twice over `tokens`,
// all inside its vocabulary, and backward where there are weights; only complete blocks of each
// sequence count, and there must be one, and at most 2^24 tokens. behind: formats of `zack` without
// codes, for which there are tables of `kvquant` behind them, too. A value that is not finite is an
// error.
Result<KvTables> calibrate_tables(const Model& model, std::span<const std::int32_t> tokens,
                                  SignpostWeights weights, const OnCalibrated& progress,
                                  std::span<const std::shared_ptr<const ZackFormat>> behind = {});

// Whether `text` is a format of `kvquant` behind another.
bool is_kvquant_behind_zack(std::string_view text);

// The format before the "+" of `text`, which is "zack:...+kvquant", perhaps with parameters;
// tables: those of the model's `zack`. Errors say what may stand there.
Result<std::shared_ptr<const ZackFormat>> zack_before_kvquant(std::string_view text,
                                                              const KvShape& shape,
                                                              const KvTables& tables);

}  // namespace kvlane
