// A text through a model, sequence after sequence: what every calibration begins with, and
// whoever wants real values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "cache/block_pool.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvlane {

// Tokens of one sequence, where the model's context is not shorter: positions, and with them the
// rotations of K, as in real prompts.
inline constexpr int kCalibrationSequence = 4096;

// Tokens of each sequence of this model but the last.
int calibration_sequence(const Model& model);

// Told tokens done and in total.
using OnCalibrated = std::function<void(std::uint64_t, std::uint64_t)>;

// What else can be seen while a sequence is computed; each may be empty.
struct SequenceHooks {
  PassHooks::OnInput on_input;
  PassHooks::OnQueries on_queries;
  // Called after each pass, of at most 256 tokens: those from `first` up to table.tokens().
  std::function<void(const BlockTable& table, int first)> on_pass;
};

// Runs the model over `tokens`, all inside its vocabulary and at least one, in sequences one after
// another, and calls `on_sequence` with the cache of each. Takes as long as computing a prompt of
// that many tokens.
Status run_sequences(const Model& model, std::span<const std::int32_t> tokens,
                     const std::function<void(const BlockTable& table)>& on_sequence,
                     const OnCalibrated& progress, const SequenceHooks& hooks = {});

}  // namespace kvlane
