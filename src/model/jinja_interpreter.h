// Runs the syntax tree of a chat template.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvlane/status.h"
#include "model/jinja_ast.h"
#include "model/jinja_builtins.h"

namespace kvlane::jinja {

using Variables = std::vector<std::pair<std::string_view, Value>>;

// What the template prints with these variables. Nothing outside is changed, and the same template
// may be rendered by several threads. Errors begin with their line; their codes are those of
// jinja_builtins.h.
Result<std::string> render(const Block& block, Variables variables, const Clock& clock);

}  // namespace kvlane::jinja
