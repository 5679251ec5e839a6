// How deep a JSON text is nested, found before a tree of it is built.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kvlane {

// Deeper than any document of a checkpoint. Each level of a tree costs some 60 bytes for one
// bracket of text, so the limit keeps a file of a few MB from taking a GB.
inline constexpr int kJsonDepthMax = 32;

// The greatest number of brackets and braces open at once, those inside strings left out. Says
// nothing about whether the text is valid JSON.
int json_depth(std::string_view text);

}  // namespace kvlane
