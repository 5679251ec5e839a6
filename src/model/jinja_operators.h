// Operators of chat templates on values: arithmetic, order, access.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "kvlane/status.h"
#include "model/jinja_ast.h"
#include "model/jinja_builtins.h"

namespace kvlane::jinja {

// One step of a chain other than `and` and `or`.
Result<Value> apply(Chain::Kind kind, const Value& left, const Value& right, Budget& budget);
Result<bool> compare(Comparison::Kind kind, const Value& left, const Value& right, Budget& budget);
Result<Value> negate(Negation::Kind kind, const Value& operand);

// What is not there is undefined, not an error; looking into something undefined is one. `name`
// must outlive the result.
Result<Value> get_attribute(const Value& object, std::string_view name);
Result<Value> get_item(const Value& object, const Value& index, Budget& budget);
// `bounds` are start, stop and step; undefined or none where there is none.
Result<Value> get_slice(const Value& object, const std::array<Value, 3>& bounds, Budget& budget);

// The error of using something undefined.
Status undefined_error(const Value& value);

}  // namespace kvlane::jinja
