// Equality, truth and nesting of template values.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_value.h"

#include <algorithm>
#include <array>

namespace kvlane::jinja {
namespace {

std::int64_t weight_of(std::string_view text) {
  return 1 + static_cast<std::int64_t>(text.size() / 64);
}

bool equal_lists(const List& a, const List& b) {
  return a.kind == b.kind &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

// The order of insertion does not count.
bool equal_dicts(const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() &&
         std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           const Value* other = b.find(item.first);
           return other != nullptr && equal(item.second, *other);
         });
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  const auto at =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == key; });
  return at == items.end() ? nullptr : &at->second;
}

Value Value::list(std::vector<Value> items, List::Kind kind) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) {
    list->depth = std::max(list->depth, item.depth() + 1);
    list->weight += item.weight();
  }
  list->items = std::move(items);
  return of(std::shared_ptr<const List>(std::move(list)));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> items) {
  auto dict = std::make_shared<Dict>();
  for (const auto& item : items) {
    dict->depth = std::max(dict->depth, item.second.depth() + 1);
    dict->weight += weight_of(item.first) + item.second.weight();
  }
  dict->items = std::move(items);
  return of(std::shared_ptr<const Dict>(std::move(dict)));
}

const std::int64_t* Value::as_integer(std::int64_t& buffer) const {
  if (const bool* truth = as_bool()) {
    buffer = *truth ? 1 : 0;
    return &buffer;
  }
  return std::get_if<std::int64_t>(&data_);
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (const std::string* text = as_text()) return !text->empty();
  if (const List* list = as_list()) return !list->items.empty();
  if (const Dict* dict = as_dict()) return !dict->items.empty();
  std::int64_t buffer = 0;
  if (const std::int64_t* number = as_integer(buffer)) return *number != 0;
  return true;
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  // A loop holds its list, but none of its users goes into it.
  return 0;
}

std::int64_t Value::weight() const {
  if (const std::string* text = as_text()) return weight_of(*text);
  if (const List* list = as_list()) return list->weight;
  if (const Dict* dict = as_dict()) return dict->weight;
  return 1;
}

std::string_view Value::kind() const {
  constexpr std::array<std::string_view, std::variant_size_v<Data>> kKinds = {
      "undefined", "none",   "a truth value", "a number",          "a string",
      "a list",    "a dict", "a namespace",   "the variable loop", "a function"};
  return kKinds[data_.index()];
}

bool equal(const Value& a, const Value& b) {
  std::int64_t buffer_a = 0;
  std::int64_t buffer_b = 0;
  const std::int64_t* number_a = a.as_integer(buffer_a);
  const std::int64_t* number_b = b.as_integer(buffer_b);
  if (number_a != nullptr && number_b != nullptr) return *number_a == *number_b;
  if (a.data().index() != b.data().index()) return false;
  if (a.as_text() != nullptr) return *a.as_text() == *b.as_text();
  if (a.as_list() != nullptr) return equal_lists(*a.as_list(), *b.as_list());
  if (a.as_dict() != nullptr) return equal_dicts(*a.as_dict(), *b.as_dict());
  if (a.as_namespace() != nullptr) return a.as_namespace() == b.as_namespace();
  if (a.as_loop() != nullptr) return a.as_loop() == b.as_loop();
  return a.is_undefined() || a.is_none();
}

}  // namespace kvlane::jinja
