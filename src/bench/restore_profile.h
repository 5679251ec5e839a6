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
#include "plan/restore_cost.h"
#include "quant/kv_format.h"

namespace kvlane {

// A form in which layers can be stored.
struct ProfiledForm {
  std::string name;  // "hidden", "hidden:int8", "kv", "kv+splitzip", or a KV format's
  RestoreSource source = RestoreSource::kSlabs;
  double bytes = 0;    // a token of a layer; the mean of layers
  double seconds = 0;  // likewise: to compute K and V in the cache from what was read
};

struct ProfiledDirectory {
  std::string path;
  double read_rate = 0;  // bytes a second
};

struct MachineProfile {
  ModelIdentity model{};
  std::string machine;    // processor, threads, memory, kernels
  std::string kv_format;  // of the cache
  int layers = 0;
  std::vector<TimedTokens> prefill;  // a layer
  std::vector<TimedTokens> project;  // likewise, K and V from rows of hidden states
  std::vector<ProfiledForm> forms;
  std::vector<ProfiledDirectory> directories;
  double read_rate = 0;  // of all directories at once; 0 without any
};

struct ProfileOptions {
  int tokens_max = 4096;  // lengths are powers of two up to this and the model's context
  int repeats = 3;        // medians are over so many
  std::vector<std::filesystem::path> directories;
  std::size_t file_bytes = std::size_t{256} << 20;  // read from each
  std::function<void(std::string_view)> progress;   // told what is being done; may be empty
};

// Times prefill in parts of kProfileChunk tokens with all threads, projection, and what stored
// forms need, for caches in 16 bits (`format` is null) or in `format`; then reading. Tokens are
// random ones: time does not depend on them, the ratio of codecs nearly not. Codecs and slabs are
// timed on one thread and counted as shared by all, which take different blocks. Fills all but
// `machine`.
inline constexpr int kProfileChunk = 512;
Result<MachineProfile> measure_restore_profile(const Model& model, const KvFormat* format,
                                               const ProfileOptions& options);

// What the planner chooses from for a sequence of `tokens` tokens when so many bytes a second are
// read; `read_rate` is more than 0.
RestoreCosts restore_costs(const MachineProfile& profile, int tokens, double read_rate);

}  // namespace kvlane
