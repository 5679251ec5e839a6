// Sequence after sequence, so that one that was interrupted is all that is lost.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_zack.h"

#include <algorithm>

namespace kvlane {
namespace {

constexpr std::uint64_t kFirstSnapshot = 1024;  // tokens

// Whether the sums have just reached the next point at which they are kept.
bool is_snapshot(const ZackSums& sums, std::uint64_t total) {
  return sums.grams.tokens >= kFirstSnapshot << sums.snapshots.size() && sums.grams.tokens < total;
}

// The next sequence of all `tokens`.
Status add_sequence(const Model& model, std::span<const std::int32_t> tokens,
                    const ZackSumOptions& options, ZackSums& sums) {
  const std::size_t start = sums.grams.tokens;
  const auto length = static_cast<std::size_t>(calibration_sequence(model));
  const std::size_t index = start / length;
  const auto sequence = tokens.subspan(start, std::min(length, tokens.size() - start));
  PassQueries queries(model.config());
  SequenceHooks hooks;
  hooks.on_queries = [&](int layer, std::span<const std::uint16_t> rows, int parts) {
    queries.keep(layer, rows, parts);
    if (options.sample != nullptr) options.sample->keep_queries(index, layer, rows, parts);
  };
  hooks.on_pass = [&](const BlockTable& table, int first) {
    queries.add_pass(table, first, sums.grams);
    if (options.sample != nullptr) options.sample->keep_pass(index, table);
    if (options.snapshots && is_snapshot(sums, tokens.size())) {
      sums.snapshots.push_back(sums.grams);
    }
  };
  const auto progress = [&](std::uint64_t done, std::uint64_t) {
    if (options.progress) options.progress(start + done, tokens.size());
  };
  return run_sequences(
      model, sequence, [](const BlockTable&) {}, progress, hooks);
}

}  // namespace

Result<ZackSums> sum_for_zack(const Model& model, std::span<const std::int32_t> tokens,
                              const ZackSumOptions& options) {
  if (tokens.empty()) return invalid_argument("calibration needs at least one token");
  const KvShape shape = model.config().kv_shape();
  const ZackStateKey key{model.identity(), model.isa(), tokens, options.snapshots};
  ZackSums sums{.grams = KvGrams::zero(shape), .snapshots = {}};
  if (!options.state.empty()) {
    KVLANE_ASSIGN(auto begun, load_zack_state(options.state, key, shape));
    if (begun) sums = std::move(*begun);
  }
  while (sums.grams.tokens < tokens.size()) {
    KVLANE_TRY(add_sequence(model, tokens, options, sums));
    if (!sums.grams.finite()) {
      return invalid_argument("the model computes K, Q or V that are not finite");
    }
    if (!options.state.empty()) KVLANE_TRY(save_zack_state(options.state, key, sums));
    const bool more = sums.grams.tokens < tokens.size();
    if (more && options.stopped && options.stopped()) return aborted("the calibration was stopped");
  }
  return sums;
}

}  // namespace kvlane
