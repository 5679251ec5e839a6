// What restoring costs with one model on this machine: measured once, kept in a file
// (bench/profile_file.h), read by plan/restore_plan.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "format/shape.h"
#include "kvlane/status.h"
#include "model/model.h"
#include "plan/machine_profile.h"
#include "quant/kv_format.h"

namespace kvlane {

struct ProfileOptions {
  int tokens_max = 4096;  // lengths are powers of two up to this and the model's context
  int repeats = 3;        // medians are over so many
  std::vector<std::filesystem::path> directories;
  std::size_t file_bytes = std::size_t{256} << 20;  // read from each
  std::function<void(std::string_view)> progress;   // told what is being done; may be empty
};

// Times prefill in parts of kRestorePieceTokens tokens with all threads, projection, and what
// stored forms need, for caches in 16 bits (`format` is null) or in `format`; then reading. Tokens
// are random ones: time does not depend on them, the ratio of codecs nearly not. Codecs and slabs
// are timed on one thread and counted as shared by all, which take different blocks. Fills all but
// `machine`.
Result<MachineProfile> measure_restore_profile(const Model& model, const KvFormat* format,
                                               const ProfileOptions& options);

}  // namespace kvlane
