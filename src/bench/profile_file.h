// Profiles of restores in a file: one for each model, machine and KV format. JSON, for people, too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bench/restore_profile.h"
#include "kvlane/status.h"

namespace kvlane {

// A longer file is refused, and so is one with more profiles, or more entries in a list of one.
inline constexpr std::size_t kProfileFileBytesMax = std::size_t{16} << 20;
inline constexpr std::size_t kProfilesMax = 4096;
inline constexpr std::size_t kProfileListMax = 256;

std::string to_json(const std::vector<MachineProfile>& profiles);

// Untrusted text. kCorrupt when it is no such file or has a figure that no measurement gives,
// kUnsupported for another version.
Result<std::vector<MachineProfile>> parse_profile_file(std::string_view text);

// The one of this model, machine and format, or null.
MachineProfile* find_profile(std::vector<MachineProfile>& profiles, const ModelIdentity& model,
                             std::string_view machine, std::string_view kv_format);

}  // namespace kvlane
