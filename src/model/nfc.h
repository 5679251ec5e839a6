// Unicode normalisation form C, which Qwen's tokenizers apply to text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// The canonical composition of `text`, which must be valid UTF-8. Takes time O(n log n) whatever
// the text: runs of combining marks in the worst order included. Fails only for lack of memory.
Result<std::string> to_nfc(std::string_view text);

}  // namespace kvlane
