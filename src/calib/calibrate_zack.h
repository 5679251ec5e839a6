// Sums over a text what ZACK's rotations come from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "calib/sequences.h"
#include "calib/zack_sample.h"
#include "calib/zack_state.h"
#include "model/model.h"

namespace kvlane {

// With fewer tokens the weak axes are noise.
inline constexpr std::uint64_t kZackTokensMin = 16384;

struct ZackSumOptions {
  // Where the sums are kept after each sequence, and taken up again; empty: nowhere. Stays behind
  // when all is summed.
  std::filesystem::path state;
  // Keep what was summed after 1,024, 2,048, 4,096 ... tokens, to see what more text changes.
  bool snapshots = false;
  // Keeps what it wants of the tokens that are computed now; null: nobody wants it.
  ZackSample* sample = nullptr;
  OnCalibrated progress;
  // Asked after each sequence but the last, may be empty: true ends the work with kAborted.
  std::function<bool()> stopped;
};

// Runs the model over `tokens`, all inside its vocabulary and at least one. The same bits for any
// number of threads, also when it was interrupted and went on from its state. A value that is not
// finite is an error. Takes as long as computing a prompt of that many tokens.
Result<ZackSums> sum_for_zack(const Model& model, std::span<const std::int32_t> tokens,
                              const ZackSumOptions& options);

}  // namespace kvlane
