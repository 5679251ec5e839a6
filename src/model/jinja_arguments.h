// Arguments of built-in filters, tests, functions and methods, matched with their parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "model/jinja_builtins.h"

namespace kvlane::jinja {

inline constexpr std::size_t kParametersMax = 4;
using Parameters = std::array<std::string_view, kParametersMax>;  // "" beyond the last

// One call of a builtin. `arguments` are by parameter; null where none was given. `title` names the
// builtin in errors ("the filter 'trim'").
struct Call {
  std::string_view title;
  const Value& input;
  std::array<const Value*, kParametersMax> arguments;
  Budget& budget;

  // The argument as text; the fallback (or an error without one) if it is not given.
  Result<std::string_view> text(std::size_t index,
                                std::optional<std::string_view> fallback = {}) const;
  // The same for whole numbers.
  Result<std::int64_t> integer(std::size_t index, std::optional<std::int64_t> fallback = {}) const;
  bool truthy(std::size_t index) const {
    return arguments[index] != nullptr && arguments[index]->truthy();
  }
  Status wrong(std::string_view what) const {
    return invalid_argument(std::string(title) + " " + std::string(what));
  }
};

struct Builtin {
  std::string_view name;
  Parameters parameters;
  Result<Value> (*run)(const Call& call);
};

// Fills call.arguments.
Status bind(const Parameters& parameters, const Values& values, Call& call);

// Finds `name` in `table` and runs it; kUnsupported when it is not there. `kind` is "filter".
template <class Table>
Result<Value> run_builtin(const Table& table, std::string_view kind, std::string_view name,
                          const Value& input, const Values& values, Budget& budget) {
  for (const Builtin& builtin : table) {
    if (builtin.name != name) continue;
    const std::string title = "the " + std::string(kind) + " '" + std::string(name) + "'";
    Call call{title, input, {}, budget};
    KVLANE_TRY(bind(builtin.parameters, values, call));
    return builtin.run(call);
  }
  return unsupported("the " + std::string(kind) + " '" + std::string(name.substr(0, 64)) +
                     "' is not supported");
}

}  // namespace kvlane::jinja
