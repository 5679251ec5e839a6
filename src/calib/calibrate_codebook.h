// Counts the exponents of a model's K and V over a text, and makes codebooks of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "calib/codebook_file.h"
#include "calib/sequences.h"
#include "model/model.h"

namespace kvlane {

// Runs the model over `tokens`, all inside its vocabulary and at least one, in sequences one after
// another. Takes as long as computing a prompt of that many tokens.
Result<CodebookFile> calibrate_codebooks(const Model& model, std::span<const std::int32_t> tokens,
                                         const OnCalibrated& progress);

}  // namespace kvlane
