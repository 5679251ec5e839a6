// `kvlane bench restore`: how long sequences take to come back from a state store, by what they
// come back from, on disks of several speeds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "kvlane/status.h"
#include "model/model.h"

namespace kvlane {

struct RestoreBenchOptions {
  // One a device. What is written goes to a new directory in each and is removed afterwards.
  std::vector<std::filesystem::path> directories;
  std::vector<int> tokens;  // of sequences, multiples of 64 within the model's context
  int repeats = 3;          // medians are over so many rounds
  bool ablations = false;   // also splits by tokens (HCache, section 6.3)
  std::function<void(std::string_view)> progress;
};

// Computes each sequence once and saves its slabs and hidden states; then, for each speed of the
// disks, brings it back in rounds of all strategies. Every strategy's K and V are compared once
// with those that were computed: kInternal when they differ. Figures: docs/bench.md.
Result<Report> bench_restore(const Model& model, const RestoreBenchOptions& options);

}  // namespace kvlane
