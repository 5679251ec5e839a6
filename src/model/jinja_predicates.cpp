// The tests of chat templates: value is name(...).
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "model/jinja_arguments.h"
#include "model/jinja_builtins.h"

namespace kvlane::jinja {
namespace {

bool is_integer(const Value& value) { return std::holds_alternative<std::int64_t>(value.data()); }

Result<Value> test_defined(const Call& call) { return Value::boolean(!call.input.is_undefined()); }
Result<Value> test_undefined(const Call& call) { return Value::boolean(call.input.is_undefined()); }
Result<Value> test_none(const Call& call) { return Value::boolean(call.input.is_none()); }
Result<Value> test_string(const Call& call) {
  return Value::boolean(call.input.as_text() != nullptr);
}
Result<Value> test_mapping(const Call& call) {
  return Value::boolean(call.input.as_dict() != nullptr);
}
// Jinja's undefined can be iterated over: it is empty.
Result<Value> test_iterable(const Call& call) {
  const Value& input = call.input;
  return Value::boolean(input.is_undefined() || input.as_text() != nullptr ||
                        input.as_list() != nullptr || input.as_dict() != nullptr ||
                        input.as_loop() != nullptr);
}
Result<Value> test_sequence(const Call& call) {
  const Value& input = call.input;
  return Value::boolean(input.is_undefined() || input.as_text() != nullptr ||
                        input.as_list() != nullptr || input.as_dict() != nullptr);
}
Result<Value> test_true(const Call& call) {
  return Value::boolean(call.input.as_bool() != nullptr && *call.input.as_bool());
}
Result<Value> test_false(const Call& call) {
  return Value::boolean(call.input.as_bool() != nullptr && !*call.input.as_bool());
}
Result<Value> test_boolean(const Call& call) {
  return Value::boolean(call.input.as_bool() != nullptr);
}
Result<Value> test_integer(const Call& call) { return Value::boolean(is_integer(call.input)); }
// A truth value is a number in Python.
Result<Value> test_number(const Call& call) {
  return Value::boolean(is_integer(call.input) || call.input.as_bool() != nullptr);
}

Result<bool> equals_argument(const Call& call) {
  if (call.arguments[0] == nullptr) return call.wrong("lacks an argument");
  KVLANE_TRY(call.budget.spend(std::min(call.input.weight(), call.arguments[0]->weight())));
  return equal(call.input, *call.arguments[0]);
}
Result<Value> test_equal(const Call& call) {
  KVLANE_ASSIGN(const bool same, equals_argument(call));
  return Value::boolean(same);
}
Result<Value> test_not_equal(const Call& call) {
  KVLANE_ASSIGN(const bool same, equals_argument(call));
  return Value::boolean(!same);
}
Result<Value> test_in(const Call& call) {
  if (call.arguments[0] == nullptr) return call.wrong("lacks an argument");
  KVLANE_ASSIGN(const bool found, contains(*call.arguments[0], call.input, call.budget));
  return Value::boolean(found);
}

Result<bool> is_odd(const Call& call) {
  std::int64_t buffer = 0;
  const std::int64_t* number = call.input.as_integer(buffer);
  if (number == nullptr) return call.wrong("does not work on " + std::string(call.input.kind()));
  return *number % 2 != 0;
}
Result<Value> test_odd(const Call& call) {
  KVLANE_ASSIGN(const bool odd, is_odd(call));
  return Value::boolean(odd);
}
Result<Value> test_even(const Call& call) {
  KVLANE_ASSIGN(const bool odd, is_odd(call));
  return Value::boolean(!odd);
}

constexpr std::array<Builtin, 20> kTests = {{
    {"!=", {"b"}, test_not_equal},   {"==", {"b"}, test_equal},
    {"boolean", {}, test_boolean},   {"defined", {}, test_defined},
    {"eq", {"b"}, test_equal},       {"equalto", {"b"}, test_equal},
    {"even", {}, test_even},         {"false", {}, test_false},
    {"in", {"seq"}, test_in},        {"integer", {}, test_integer},
    {"iterable", {}, test_iterable}, {"mapping", {}, test_mapping},
    {"ne", {"b"}, test_not_equal},   {"none", {}, test_none},
    {"number", {}, test_number},     {"odd", {}, test_odd},
    {"sequence", {}, test_sequence}, {"string", {}, test_string},
    {"true", {}, test_true},         {"undefined", {}, test_undefined},
}};

}  // namespace

Result<bool> call_test(std::string_view name, const Value& input, const Values& arguments,
                       Budget& budget) {
  KVLANE_ASSIGN(const Value truth, run_builtin(kTests, "test", name, input, arguments, budget));
  return truth.truthy();
}

}  // namespace kvlane::jinja
