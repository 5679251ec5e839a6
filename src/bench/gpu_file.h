// GPUs that the simulator does not know, and better figures of those that it does, from a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "sim/gpu.h"

namespace kvlane {

// A JSON array of objects: "name"; "memory_gb", "memory_gb_s", "matrix_tflops" in 16 bits,
// "vector_tflops"; and where they differ from these defaults "matrix_int8_tops" (0: none),
// "peer_gb_s" (8), "peer_us" (60), "memory_share" (0.8), "matrix_share" (0.75), "attention_share"
// (0.4). kInvalidArgument names the object and what is wrong with it: a member that is absent,
// unknown, no number or out of range, or a name that is there twice.
Result<std::vector<Gpu>> parse_gpus(std::string_view text);
Result<std::vector<Gpu>> read_gpus(const std::filesystem::path& path);

}  // namespace kvlane
