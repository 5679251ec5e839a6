// Backslash escapes of string literals in templates, which are Python's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane::jinja {

// The value of a string literal from what stands between its quotes (valid UTF-8). A backslash
// before a character that makes no escape stays, as in Python. kCorrupt for cut-off escapes;
// kUnsupported for \N{...}, surrogates, and a backslash before a character that is not ASCII.
Result<std::string> resolve_escapes(std::string_view literal);

}  // namespace kvlane::jinja
