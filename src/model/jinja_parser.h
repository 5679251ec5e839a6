// From the text of a chat template to its syntax tree.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "kvlane/status.h"
#include "model/jinja_ast.h"

namespace kvlane::jinja {

// `source` is untrusted. kCorrupt for what is no template; kUnsupported for tags and forms that
// kvlane does not do; kExhausted for absurd size or nesting. Each error begins with its line.
// Filters, tests, functions and methods are looked up when they are used: published templates
// mention some that text messages never reach.
Result<Block> parse(std::string_view source);

}  // namespace kvlane::jinja
