// Conversions, limits and matching of arguments that all builtins share.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_builtins.h"

#include <algorithm>

#include "model/jinja_arguments.h"
#include "model/python_text.h"

namespace kvlane::jinja {

Status Budget::spend(std::int64_t work) {
  if (work > left_) {
    return exhausted("the template does more than " + std::to_string(kWorkMax) + " steps of work");
  }
  left_ -= work;
  return {};
}

Status bind(const Parameters& parameters, const Values& values, Call& call) {
  const auto count = static_cast<std::size_t>(std::find(parameters.begin(), parameters.end(), "") -
                                              parameters.begin());
  if (values.positional.size() > count) {
    return call.wrong("takes at most " + std::to_string(count) + " arguments, not " +
                      std::to_string(values.positional.size()));
  }
  for (std::size_t index = 0; index < values.positional.size(); ++index) {
    call.arguments[index] = &values.positional[index];
  }
  for (const auto& [name, value] : values.named) {
    const auto index = static_cast<std::size_t>(
        std::find(parameters.begin(), parameters.begin() + static_cast<std::ptrdiff_t>(count),
                  name) -
        parameters.begin());
    if (index == count) return call.wrong("has no argument '" + name.substr(0, 64) + "'");
    if (call.arguments[index] != nullptr)
      return call.wrong("gets the argument '" + name + "' twice");
    call.arguments[index] = &value;
  }
  return {};
}

Result<std::string_view> Call::text(std::size_t index,
                                    std::optional<std::string_view> fallback) const {
  const Value* value = arguments[index];
  if (value == nullptr || (value->is_none() && fallback)) {
    if (fallback) return *fallback;
    return wrong("lacks an argument");
  }
  const std::string* held = value->as_text();
  if (held == nullptr) return wrong("takes a string, not " + std::string(value->kind()));
  return std::string_view(*held);
}

Result<std::int64_t> Call::integer(std::size_t index, std::optional<std::int64_t> fallback) const {
  const Value* value = arguments[index];
  if (value == nullptr || (value->is_none() && fallback)) {
    if (fallback) return *fallback;
    return wrong("lacks an argument");
  }
  std::int64_t buffer = 0;
  const std::int64_t* number = value->as_integer(buffer);
  if (number == nullptr) return wrong("takes a whole number, not " + std::string(value->kind()));
  return *number;
}

bool is_stream(const Value& value) {
  return value.as_list() != nullptr && value.as_list()->kind == List::Kind::kStream;
}

Status stream_error() {
  return unsupported(
      "using what 'map', 'select' or their like give without '| list' behind it is not supported");
}

Result<std::string> to_text(const Value& value) {
  if (const std::string* text = value.as_text()) return *text;
  if (value.is_undefined()) return std::string();
  if (value.is_none()) return std::string("None");
  if (const bool* truth = value.as_bool()) return std::string(*truth ? "True" : "False");
  std::int64_t buffer = 0;
  if (const std::int64_t* number = value.as_integer(buffer)) return std::to_string(*number);
  return unsupported("printing " + std::string(value.kind()) + " is not supported");
}

Result<Value> make_list(std::vector<Value> items, Budget& budget, List::Kind kind) {
  KVLANE_TRY(budget.spend(static_cast<std::int64_t>(items.size())));
  Value list = Value::list(std::move(items), kind);
  if (list.depth() > kValueDepthMax || list.weight() > kValueWeightMax) {
    return exhausted("a list nests too deep or holds too much");
  }
  return list;
}

Result<Value> make_dict(std::vector<std::pair<std::string, Value>> items, Budget& budget) {
  KVLANE_TRY(budget.spend(static_cast<std::int64_t>(items.size())));
  Value dict = Value::dict(std::move(items));
  if (dict.depth() > kValueDepthMax || dict.weight() > kValueWeightMax) {
    return exhausted("a dict nests too deep or holds too much");
  }
  return dict;
}

Result<Value> make_text(std::string text, Budget& budget) {
  if (text.size() > kRenderedBytesMax) {
    return exhausted("a text of more than " + std::to_string(kRenderedBytesMax) + " bytes");
  }
  KVLANE_TRY(budget.spend_bytes(text.size()));
  return Value::text(std::move(text));
}

Result<Value> to_list(const Value& value, Budget& budget) {
  if (const List* list = value.as_list()) {
    return list->kind == List::Kind::kList ? Result<Value>(value) : make_list(list->items, budget);
  }
  std::vector<Value> items;
  if (const std::string* text = value.as_text()) {
    KVLANE_TRY(budget.spend(static_cast<std::int64_t>(text->size())));
    for (const std::string_view character : characters_of(*text)) {
      items.push_back(Value::text(std::string(character)));
    }
    return make_list(std::move(items), budget);
  }
  if (const Dict* dict = value.as_dict()) {
    for (const auto& item : dict->items) items.push_back(Value::text(item.first));
    return make_list(std::move(items), budget);
  }
  if (value.is_undefined()) return make_list({}, budget);
  return invalid_argument(std::string(value.kind()) + " cannot be iterated over");
}

Result<bool> contains(const Value& container, const Value& item, Budget& budget) {
  if (const std::string* text = container.as_text()) {
    const std::string* part = item.as_text();
    if (part == nullptr) {
      return invalid_argument("'in' a string takes a string, not " + std::string(item.kind()));
    }
    KVLANE_TRY(budget.spend_search(text->size(), part->size()));
    return text->find(*part) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    KVLANE_TRY(budget.spend(static_cast<std::int64_t>(dict->items.size())));
    if (item.as_list() != nullptr || item.as_dict() != nullptr) {
      return invalid_argument(std::string(item.kind()) + " cannot be the key of a dict");
    }
    return item.as_text() != nullptr && dict->find(*item.as_text()) != nullptr;
  }
  if (const List* list = container.as_list()) {
    KVLANE_TRY(budget.spend(list->weight));
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& held) { return equal(held, item); });
  }
  if (container.is_undefined()) return false;
  return invalid_argument("'in' does not work on " + std::string(container.kind()));
}

}  // namespace kvlane::jinja
