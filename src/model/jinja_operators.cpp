// Python's operators for the kinds of values that templates have.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_operators.h"

#include <algorithm>
#include <array>

#include "model/python_text.h"

namespace kvlane::jinja {
namespace {

Status wrong_kinds(std::string_view what, const Value& left, const Value& right) {
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  // Python has an order of lists, and repeats them; no template needs that.
  if (left.as_list() != nullptr || right.as_list() != nullptr) {
    return unsupported("'" + std::string(what) + "' of a list is not supported");
  }
  return invalid_argument("'" + std::string(what) + "' does not work on " +
                          std::string(left.kind()) + " and " + std::string(right.kind()));
}

std::string_view symbol(Chain::Kind kind) {
  constexpr std::array<std::string_view, 8> kSymbols = {"and", "or", "+", "-", "*", "//", "%", "~"};
  return kSymbols[static_cast<std::size_t>(kind)];
}

Result<Value> arithmetic(Chain::Kind kind, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (kind) {
    case Chain::Kind::kAdd: overflow = __builtin_add_overflow(a, b, &result); break;
    case Chain::Kind::kSubtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case Chain::Kind::kMultiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    default: {
      if (b == 0) return invalid_argument("division by zero");
      if (b == -1) {  // the smallest number has no opposite
        overflow = __builtin_sub_overflow(std::int64_t{0}, a, &result);
        if (kind == Chain::Kind::kModulo) return Value::integer(0);
        break;
      }
      // Python rounds down, C++ towards zero.
      const bool down = a % b != 0 && (a % b < 0) != (b < 0);
      result = kind == Chain::Kind::kModulo ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
    }
  }
  if (overflow) return unsupported("a number beyond 64 bits is not supported");
  return Value::integer(result);
}

Result<Value> repeat(const std::string& text, std::int64_t times, Budget& budget) {
  if (times <= 0 || text.empty()) return Value::text("");
  if (times > static_cast<std::int64_t>(kRenderedBytesMax / text.size())) {
    return exhausted("a text of more than " + std::to_string(kRenderedBytesMax) + " bytes");
  }
  std::string result;
  result.reserve(text.size() * static_cast<std::size_t>(times));
  for (std::int64_t time = 0; time < times; ++time) result += text;
  KVLANE_TRY(budget.spend(times));
  return make_text(std::move(result), budget);
}

Result<Value> add(const Value& left, const Value& right, Budget& budget) {
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    return make_text(*left.as_text() + *right.as_text(), budget);
  }
  if (left.as_list() != nullptr && right.as_list() != nullptr &&
      left.as_list()->kind == right.as_list()->kind) {
    std::vector<Value> items = left.as_list()->items;
    const std::vector<Value>& more = right.as_list()->items;
    items.insert(items.end(), more.begin(), more.end());
    return make_list(std::move(items), budget, left.as_list()->kind);
  }
  return wrong_kinds("+", left, right);
}

// -1, 0 or 1; an error for kinds without an order.
Result<int> order(const Value& left, const Value& right, Budget& budget) {
  std::int64_t buffer_left = 0;
  std::int64_t buffer_right = 0;
  const std::int64_t* a = left.as_integer(buffer_left);
  const std::int64_t* b = right.as_integer(buffer_right);
  if (a != nullptr && b != nullptr) return *a < *b ? -1 : *a > *b ? 1 : 0;
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    KVLANE_TRY(budget.spend(std::min(left.weight(), right.weight())));
    // The order of UTF-8 bytes is the order of code points.
    const int sign = left.as_text()->compare(*right.as_text());
    return sign < 0 ? -1 : sign > 0 ? 1 : 0;
  }
  return wrong_kinds("<", left, right);
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = static_cast<std::int64_t>(loop.items->items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "length") return Value::integer(length);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "previtem" && index > 0) return loop.items->items[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return loop.items->items[loop.index + 1];
  return Value::of(Undefined{name});
}

// The item at `at`, from the end if negative; undefined outside.
template <class Items>
auto* item_at(const Items& items, std::int64_t at) {
  const auto size = static_cast<std::int64_t>(items.size());
  if (at < 0) at += size;
  return at < 0 || at >= size ? nullptr : &items[static_cast<std::size_t>(at)];
}

}  // namespace

Status undefined_error(const Value& value) {
  const std::string name(std::get<Undefined>(value.data()).name);
  return invalid_argument(name.empty() ? "an item that does not exist is used"
                                       : "'" + name + "' is undefined");
}

Result<Value> apply(Chain::Kind kind, const Value& left, const Value& right, Budget& budget) {
  if (kind == Chain::Kind::kConcatenate) {
    KVLANE_ASSIGN(std::string text, to_text(left));
    KVLANE_ASSIGN(const std::string more, to_text(right));
    return make_text(text + more, budget);
  }
  std::int64_t buffer_left = 0;
  std::int64_t buffer_right = 0;
  const std::int64_t* a = left.as_integer(buffer_left);
  const std::int64_t* b = right.as_integer(buffer_right);
  if (a != nullptr && b != nullptr) return arithmetic(kind, *a, *b);
  if (kind == Chain::Kind::kAdd) return add(left, right, budget);
  if (kind == Chain::Kind::kMultiply && left.as_text() != nullptr && b != nullptr) {
    return repeat(*left.as_text(), *b, budget);
  }
  if (kind == Chain::Kind::kModulo && left.as_text() != nullptr) {
    return unsupported("formatting a string with '%' is not supported");
  }
  return wrong_kinds(symbol(kind), left, right);
}

Result<bool> compare(Comparison::Kind kind, const Value& left, const Value& right, Budget& budget) {
  switch (kind) {
    case Comparison::Kind::kIn: return contains(right, left, budget);
    case Comparison::Kind::kNotIn: {
      KVLANE_ASSIGN(const bool found, contains(right, left, budget));
      return !found;
    }
    case Comparison::Kind::kEqual:
    case Comparison::Kind::kNotEqual:
      KVLANE_TRY(budget.spend(std::min(left.weight(), right.weight())));
      return equal(left, right) == (kind == Comparison::Kind::kEqual);
    default: break;
  }
  KVLANE_ASSIGN(const int sign, order(left, right, budget));
  switch (kind) {
    case Comparison::Kind::kLess: return sign < 0;
    case Comparison::Kind::kLessEqual: return sign <= 0;
    case Comparison::Kind::kGreater: return sign > 0;
    default: return sign >= 0;
  }
}

Result<Value> negate(Negation::Kind kind, const Value& operand) {
  if (kind == Negation::Kind::kNot) return Value::boolean(!operand.truthy());
  std::int64_t buffer = 0;
  const std::int64_t* number = operand.as_integer(buffer);
  if (number == nullptr) {
    if (operand.is_undefined()) return undefined_error(operand);
    return invalid_argument("a sign before " + std::string(operand.kind()));
  }
  if (kind == Negation::Kind::kPlus) return Value::integer(*number);
  return arithmetic(Chain::Kind::kSubtract, 0, *number);
}

Result<Value> get_attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) return undefined_error(object);
  if (const Namespace* space = object.as_namespace()) {
    const auto at = space->attributes.find(name);
    return at != space->attributes.end() ? at->second : Value::of(Undefined{name});
  }
  if (const Loop* loop = object.as_loop()) return loop_attribute(*loop, name);
  // Python finds the method before the key.
  if (is_python_method(object, name)) {
    return unsupported("the method '" + std::string(name) + "' without a call is not supported");
  }
  if (const Dict* dict = object.as_dict()) {
    if (const Value* value = dict->find(name)) return *value;
  }
  return Value::of(Undefined{name});
}

Result<Value> get_item(const Value& object, const Value& index, Budget& budget) {
  if (object.is_undefined()) return undefined_error(object);
  std::int64_t buffer = 0;
  if (const std::int64_t* at = index.as_integer(buffer)) {
    if (const List* list = object.as_list()) {
      const Value* item = list->kind == List::Kind::kView ? nullptr : item_at(list->items, *at);
      return item != nullptr ? *item : Value();
    }
    if (const std::string* text = object.as_text()) {
      KVLANE_TRY(budget.spend(static_cast<std::int64_t>(text->size())));
      const std::vector<std::string_view> characters = characters_of(*text);
      const std::string_view* character = item_at(characters, *at);
      return character != nullptr ? Value::text(std::string(*character)) : Value();
    }
    return Value();
  }
  const std::string* key = index.as_text();
  if (key == nullptr) return Value();
  if (const Dict* dict = object.as_dict()) {
    KVLANE_TRY(budget.spend(static_cast<std::int64_t>(dict->items.size())));
    if (const Value* value = dict->find(*key)) return *value;
  }
  KVLANE_ASSIGN(Value value, get_attribute(object, *key));
  // The name of what is undefined would be the key, which may not live as long.
  return value.is_undefined() ? Value() : value;
}

Result<Value> get_slice(const Value& object, const std::array<Value, 3>& bounds, Budget& budget) {
  if (object.is_undefined()) return undefined_error(object);
  std::array<std::optional<std::int64_t>, 3> numbers;
  for (std::size_t part = 0; part < bounds.size(); ++part) {
    std::int64_t buffer = 0;
    if (const std::int64_t* number = bounds[part].as_integer(buffer)) {
      numbers[part] = *number;
    } else if (!bounds[part].is_none()) {
      return invalid_argument("a slice takes whole numbers, not " +
                              std::string(bounds[part].kind()));
    }
  }
  const std::int64_t step = numbers[2].value_or(1);
  if (step == 0) return invalid_argument("a slice with the step 0");
  if (const std::string* text = object.as_text()) {
    KVLANE_TRY(
        budget.spend(static_cast<std::int64_t>(step == 1 ? text->size() / 64 : text->size())));
    return make_text(slice_text(*text, numbers[0], numbers[1], step), budget);
  }
  const List* list = object.as_list();
  if (list == nullptr || list->kind == List::Kind::kView)
    return invalid_argument("a slice of " + std::string(object.kind()));
  const SliceRange range = slice_range(list->items.size(), numbers[0], numbers[1], step);
  std::vector<Value> items;
  for (std::int64_t at = range.from; range.has(at); at += range.stride) {
    items.push_back(list->items[static_cast<std::size_t>(at)]);
  }
  return make_list(std::move(items), budget, list->kind);
}

}  // namespace kvlane::jinja
