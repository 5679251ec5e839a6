// What a worker does for others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kvlane {

enum class Role {
  kBoth,     // prefill and decode here; no transfers
  kPrefill,  // prefills for others
  kDecode,   // decodes what others prefilled; also serves plain requests alone
};
std::string_view role_name(Role role);  // "both", "prefill", "decode"

}  // namespace kvlane
