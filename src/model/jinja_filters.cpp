// The filters of chat templates: value|name(...).
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "model/jinja_arguments.h"
#include "model/jinja_builtins.h"
#include "model/jinja_json.h"
#include "model/jinja_operators.h"
#include "model/python_text.h"

namespace kvlane::jinja {
namespace {

// Jinja makes text of what a text filter gets.
Result<std::string> input_text(const Call& call) {
  Result<std::string> text = to_text(call.input);
  if (text.ok()) KVLANE_TRY(call.budget.spend_bytes(text->size()));
  return text;
}

Result<Value> filter_trim(const Call& call) {
  KVLANE_ASSIGN(const std::string text, input_text(call));
  if (call.arguments[0] == nullptr || call.arguments[0]->is_none()) {
    return make_text(std::string(strip(text, Side::kBoth, std::nullopt)), call.budget);
  }
  KVLANE_ASSIGN(const std::string_view set, call.text(0));
  KVLANE_TRY(call.budget.spend_search(text.size(), set.size()));
  return make_text(std::string(strip(text, Side::kBoth, set)), call.budget);
}

Result<Value> filter_length(const Call& call) {
  const Value& input = call.input;
  std::size_t count = 0;
  if (const std::string* text = input.as_text()) {
    KVLANE_TRY(call.budget.spend_bytes(text->size()));
    count = count_characters(*text);
  } else if (const List* list = input.as_list()) {
    count = list->items.size();
  } else if (const Dict* dict = input.as_dict()) {
    count = dict->items.size();
  } else if (!input.is_undefined()) {
    return call.wrong("does not work on " + std::string(input.kind()));
  }
  return Value::integer(static_cast<std::int64_t>(count));
}

Result<Value> filter_default(const Call& call) {
  if (!call.input.is_undefined() && (!call.truthy(1) || call.input.truthy())) return call.input;
  return call.arguments[0] != nullptr ? *call.arguments[0] : Value::text("");
}

Result<Value> filter_join(const Call& call) {
  if (call.arguments[1] != nullptr)
    return unsupported(std::string(call.title) + " with 'attribute'");
  std::string separator;
  if (call.arguments[0] != nullptr) {
    KVLANE_ASSIGN(separator, to_text(*call.arguments[0]));
  }
  KVLANE_ASSIGN(const Value items, to_list(call.input, call.budget));
  std::string joined;
  for (const Value& item : items.as_list()->items) {
    KVLANE_ASSIGN(const std::string text, to_text(item));
    if (&item != &items.as_list()->items.front()) joined.append(separator);
    KVLANE_TRY(call.budget.spend_bytes(separator.size() + text.size()));
    joined.append(text);
    if (joined.size() > kRenderedBytesMax) break;  // make_text says so
  }
  return make_text(std::move(joined), call.budget);
}

Result<Value> filter_items(const Call& call) {
  if (call.input.is_undefined()) return make_list({}, call.budget);
  if (call.input.as_dict() == nullptr) {
    return call.wrong("works on a dict, not on " + std::string(call.input.kind()));
  }
  return call_method("items", call.input, {}, call.budget);
}

Result<Value> filter_list(const Call& call) { return to_list(call.input, call.budget); }

Result<Value> filter_string(const Call& call) {
  KVLANE_ASSIGN(std::string text, input_text(call));
  return make_text(std::move(text), call.budget);
}

Result<Value> end_of(const Call& call, bool first) {
  KVLANE_ASSIGN(const Value items, to_list(call.input, call.budget));
  const std::vector<Value>& held = items.as_list()->items;
  if (held.empty()) return Value();
  return first ? held.front() : held.back();
}

Result<Value> filter_first(const Call& call) { return end_of(call, true); }
Result<Value> filter_last(const Call& call) { return end_of(call, false); }

Result<Value> as_method(std::string_view name, const Call& call, const Values& arguments) {
  KVLANE_ASSIGN(std::string text, input_text(call));
  return call_method(name, Value::text(std::move(text)), arguments, call.budget);
}

Result<Value> filter_upper(const Call& call) { return as_method("upper", call, {}); }
Result<Value> filter_lower(const Call& call) { return as_method("lower", call, {}); }
Result<Value> filter_replace(const Call& call) {
  Values arguments;
  for (std::size_t index = 0; index < 2; ++index) {
    if (call.arguments[index] == nullptr) return call.wrong("lacks an argument");
    KVLANE_ASSIGN(std::string text, to_text(*call.arguments[index]));
    arguments.positional.push_back(Value::text(std::move(text)));
  }
  if (call.arguments[2] != nullptr) arguments.positional.push_back(*call.arguments[2]);
  return as_method("replace", call, arguments);
}

// As transformers defines it: json.dumps with ensure_ascii=False.
Result<Value> filter_tojson(const Call& call) {
  const bool separators = call.arguments[2] != nullptr && !call.arguments[2]->is_none();
  if (call.truthy(0) || separators || call.truthy(3)) {
    return unsupported(std::string(call.title) +
                       " with other arguments than 'indent' is not supported");
  }
  KVLANE_ASSIGN(const std::int64_t indent, call.integer(1, -1));
  KVLANE_TRY(call.budget.spend(call.input.weight()));
  KVLANE_ASSIGN(std::string json, to_json(call.input, indent));
  return make_text(std::move(json), call.budget);
}

// An attribute of items, as map and its like name it: parts between dots, digits are indices.
class Path {
 public:
  static Result<Path> parse(const Call& call, const Value& argument) {
    const std::string* text = argument.as_text();
    if (text == nullptr) {
      return unsupported(std::string(call.title) + " with " + std::string(argument.kind()) +
                         " as the attribute is not supported");
    }
    KVLANE_TRY(call.budget.spend_bytes(text->size()));
    Path path;
    for (std::size_t at = 0; at <= text->size();) {
      const std::string part = text->substr(at, text->find('.', at) - at);
      const bool index = !part.empty() && part.size() < 10 &&
                         part.find_first_not_of("0123456789") == std::string::npos;
      path.parts_.push_back(index ? Value::integer(std::atoi(part.c_str())) : Value::text(part));
      at += part.size() + 1;
    }
    return path;
  }

  // What is not there is the fallback, if there is one, in which the next part is looked for.
  Result<Value> of(const Value& item, const Value* fallback, Budget& budget) const {
    Value value = item;
    for (const Value& part : parts_) {
      KVLANE_TRY(budget.spend(1));
      KVLANE_ASSIGN(value, get_item(value, part, budget));
      if (value.is_undefined() && fallback != nullptr && !fallback->is_none()) value = *fallback;
    }
    return value;
  }

 private:
  std::vector<Value> parts_;
};

Result<Value> stream(std::vector<Value> items, const Call& call) {
  return make_list(std::move(items), call.budget, List::Kind::kStream);
}

// The items that pass the test named by argument `test`, or are true where there is none; of each
// its attribute is looked at, if there is a path.
Result<Value> chosen(const Call& call, const std::optional<Path>& path, std::size_t test,
                     bool wanted) {
  KVLANE_ASSIGN(const Value items, to_list(call.input, call.budget));
  Values arguments;
  if (call.arguments[test + 1] != nullptr) {
    arguments.positional.push_back(*call.arguments[test + 1]);
  }
  std::vector<Value> kept;
  for (const Value& item : items.as_list()->items) {
    KVLANE_TRY(call.budget.spend(1));
    Value looked_at = item;
    if (path) {
      KVLANE_ASSIGN(looked_at, path->of(item, nullptr, call.budget));
    }
    bool passes = looked_at.truthy();
    if (call.arguments[test] != nullptr) {
      KVLANE_ASSIGN(const std::string_view name, call.text(test));
      KVLANE_ASSIGN(passes, call_test(name, looked_at, arguments, call.budget));
    }
    if (passes == wanted) kept.push_back(item);
  }
  return stream(std::move(kept), call);
}

Result<Value> chosen_by_attribute(const Call& call, bool wanted) {
  if (!call.input.truthy()) return stream({}, call);
  if (call.arguments[0] == nullptr) return call.wrong("lacks an argument");
  KVLANE_ASSIGN(const Path path, Path::parse(call, *call.arguments[0]));
  return chosen(call, path, 1, wanted);
}

// In Jinja they take what is not true, none for instance, for nothing at all.
Result<Value> filter_select(const Call& call) {
  return call.input.truthy() ? chosen(call, std::nullopt, 0, true) : stream({}, call);
}
Result<Value> filter_reject(const Call& call) {
  return call.input.truthy() ? chosen(call, std::nullopt, 0, false) : stream({}, call);
}
Result<Value> filter_selectattr(const Call& call) { return chosen_by_attribute(call, true); }
Result<Value> filter_rejectattr(const Call& call) { return chosen_by_attribute(call, false); }

// Either the name of a filter without arguments, or an attribute.
Result<Value> filter_map(const Call& call) {
  if (!call.input.truthy()) return stream({}, call);
  std::optional<Path> path;
  std::string_view filter;
  if (call.arguments[0] != nullptr) {
    KVLANE_ASSIGN(filter, call.text(0));
  } else if (call.arguments[1] != nullptr) {
    KVLANE_ASSIGN(path, Path::parse(call, *call.arguments[1]));
  } else {
    return call.wrong("lacks an argument");
  }
  KVLANE_ASSIGN(const Value items, to_list(call.input, call.budget));
  std::vector<Value> mapped;
  for (const Value& item : items.as_list()->items) {
    KVLANE_TRY(call.budget.spend(1));
    Value value;
    if (path) {
      KVLANE_ASSIGN(value, path->of(item, call.arguments[2], call.budget));
    } else {
      KVLANE_ASSIGN(value, call_filter(filter, item, {}, call.budget));
      if (is_stream(value)) return stream_error();
    }
    mapped.push_back(std::move(value));
  }
  return stream(std::move(mapped), call);
}

// Jinja gives names in calls of these to the test or the filter that they name.
Status refuse_forwarded(std::string_view filter, const Values& arguments) {
  const bool map = filter == "map";
  if (!map && filter != "select" && filter != "reject" && filter != "selectattr" &&
      filter != "rejectattr") {
    return {};
  }
  const bool attribute = std::ranges::any_of(
      arguments.named, [](const auto& named) { return named.first == "attribute"; });
  const bool known = std::ranges::all_of(arguments.named, [&](const auto& named) {
    return attribute && (named.first == "attribute" || named.first == "default");
  });
  if (map ? arguments.positional.size() + attribute <= 1 && known : arguments.named.empty()) {
    return {};
  }
  return unsupported("the filter '" + std::string(filter) +
                     "' with arguments of a test or a filter by name, or with several of a filter, "
                     "is not supported");
}

constexpr std::array<Builtin, 20> kFilters = {{
    {"count", {}, filter_length},
    {"d", {"default_value", "boolean"}, filter_default},
    {"default", {"default_value", "boolean"}, filter_default},
    {"first", {}, filter_first},
    {"items", {}, filter_items},
    {"join", {"d", "attribute"}, filter_join},
    {"last", {}, filter_last},
    {"length", {}, filter_length},
    {"list", {}, filter_list},
    {"lower", {}, filter_lower},
    {"map", {"filter", "attribute", "default"}, filter_map},
    {"reject", {"test", "value"}, filter_reject},
    {"rejectattr", {"attribute", "test", "value"}, filter_rejectattr},
    {"replace", {"old", "new", "count"}, filter_replace},
    {"select", {"test", "value"}, filter_select},
    {"selectattr", {"attribute", "test", "value"}, filter_selectattr},
    {"string", {}, filter_string},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, filter_tojson},
    {"trim", {"chars"}, filter_trim},
    {"upper", {}, filter_upper},
}};

}  // namespace

Result<Value> call_filter(std::string_view name, const Value& input, const Values& arguments,
                          Budget& budget) {
  constexpr std::array<std::string_view, 8> kOfStreams = {
      "first", "join", "list", "map", "reject", "rejectattr", "select", "selectattr"};
  if (is_stream(input) && std::ranges::find(kOfStreams, name) == kOfStreams.end()) {
    return stream_error();
  }
  KVLANE_TRY(refuse_forwarded(name, arguments));
  return run_builtin(kFilters, "filter", name, input, arguments, budget);
}

}  // namespace kvlane::jinja
