// What a calibration for ZACK has summed so far, in a file from which an interrupted one goes on.
// The file is ours alone: no other version of kvlane need read it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "calib/kv_grams.h"
#include "cpu/isa.h"
#include "kvlane/status.h"

namespace kvlane {

struct ZackSums {
  KvGrams grams;
  // The same at 1,024, 2,048, 4,096 ... tokens, if they were asked for.
  std::vector<KvGrams> snapshots;
};

// What sums depend on: of another calibration they are of no use.
struct ZackStateKey {
  ModelIdentity model{};
  Isa isa = Isa::kScalar;  // kernels of different tiers round differently
  std::span<const std::int32_t> tokens;
  bool snapshots = false;
};

Status save_zack_state(const std::filesystem::path& path, const ZackStateKey& key,
                       const ZackSums& sums);

// Nothing where there is no file. kInvalidArgument when it is the state of something else, kCorrupt
// when it is none; both sentences say that deleting it helps.
Result<std::optional<ZackSums>> load_zack_state(const std::filesystem::path& path,
                                                const ZackStateKey& key, const KvShape& shape);

}  // namespace kvlane
