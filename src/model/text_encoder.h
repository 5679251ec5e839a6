// Text between special tokens to token ids: what kinds of tokenizers do each in their own way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Immutable, thread-safe.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of `text`, which is valid UTF-8 and not empty, to `ids`. `first`: no text and
  // no token comes before it.
  virtual Status encode(std::string_view text, bool first,
                        std::vector<std::int32_t>& ids) const = 0;
};

}  // namespace kvlane
