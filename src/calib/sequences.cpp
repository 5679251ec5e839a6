// The forward pass over a text.
// SPDX-License-Identifier: Apache-2.0
#include "calib/sequences.h"

#include <algorithm>

namespace kvlane {
namespace {

constexpr std::size_t kPassTokens = 256;  // computed at once

}  // namespace

int calibration_sequence(const Model& model) {
  return std::min(model.context(), kCalibrationSequence);
}

Status run_sequences(const Model& model, std::span<const std::int32_t> tokens,
                     const std::function<void(const BlockTable& table)>& on_sequence,
                     const OnCalibrated& progress, const SequenceHooks& hooks) {
  if (tokens.empty()) return invalid_argument("calibration needs at least one token");
  const KvShape shape = model.config().kv_shape();
  const auto length = static_cast<std::size_t>(calibration_sequence(model));
  KVLANE_ASSIGN(BlockPool pool, BlockPool::create(shape, blocks_for(static_cast<int>(length)) *
                                                             shape.block_bytes()));
  KVLANE_ASSIGN(const auto forward, Forward::create(model, static_cast<int>(kPassTokens), 1));
  for (std::size_t start = 0; start < tokens.size(); start += length) {
    const auto sequence = tokens.subspan(start, std::min(length, tokens.size() - start));
    BlockTable table(pool);
    KVLANE_TRY(table.grow(static_cast<int>(sequence.size())));
    for (std::size_t done = 0; done < sequence.size(); done += kPassTokens) {
      const auto part = sequence.subspan(done, std::min(kPassTokens, sequence.size() - done));
      const ForwardSpan span{&table, part, 0};
      KVLANE_TRY(
          forward->run({&span, 1}, {.on_input = hooks.on_input, .on_queries = hooks.on_queries}));
      if (hooks.on_pass) hooks.on_pass(table, static_cast<int>(done));
      if (progress) progress(start + done + part.size(), tokens.size());
    }
    on_sequence(table);
  }
  return {};
}

}  // namespace kvlane
