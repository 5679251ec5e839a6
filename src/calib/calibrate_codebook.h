// Counts the exponents of a model's K and V over a text, and makes codebooks of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "calib/codebook_file.h"
#include "model/model.h"

namespace kvlane {

// Tokens of one sequence, where the model's context is not shorter: positions, and with them the
// rotations of K, as in real prompts.
inline constexpr int kCalibrationSequence = 4096;

// Told tokens done and in total.
using OnCalibrated = std::function<void(std::uint64_t, std::uint64_t)>;

// Runs the model over `tokens`, all inside its vocabulary and at least one, in sequences one after
// another. Takes as long as computing a prompt of that many tokens.
Result<CodebookFile> calibrate_codebooks(const Model& model, std::span<const std::int32_t> tokens,
                                         const OnCalibrated& progress);

}  // namespace kvlane
