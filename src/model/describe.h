// What is in this checkpoint? For `kvlane inspect DIR`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "kvlane/status.h"

namespace kvlane {

// One JSON object, indented: architecture, all dimensions, RoPE, special tokens, parameters, bytes
// of the weights, shards, KV bytes per token at 16 bits, identity. Opens and checks the checkpoint
// and reads all weights once; `progress`, which may be empty, gets bytes read and bytes in total.
Result<std::string> describe_checkpoint_json(
    const std::filesystem::path& directory,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace kvlane
