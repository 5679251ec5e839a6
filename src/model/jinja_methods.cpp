// Methods of strings and dicts, and the global functions of chat templates.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "model/jinja_arguments.h"
#include "model/jinja_builtins.h"
#include "model/python_text.h"

namespace kvlane::jinja {
namespace {

// Most parts of one split, and of one range (the limit of Jinja's sandbox).
constexpr std::int64_t kPartsMax = 100'000;

// ---- strings ----

const std::string& self(const Call& call) { return *call.input.as_text(); }

Result<Value> strip_side(const Call& call, Side side) {
  if (call.arguments[0] == nullptr || call.arguments[0]->is_none()) {
    return make_text(std::string(strip(self(call), side, std::nullopt)), call.budget);
  }
  KVLANE_ASSIGN(const std::string_view set, call.text(0));
  KVLANE_TRY(call.budget.spend_search(self(call).size(), set.size()));
  return make_text(std::string(strip(self(call), side, set)), call.budget);
}
Result<Value> text_strip(const Call& call) { return strip_side(call, Side::kBoth); }
Result<Value> text_lstrip(const Call& call) { return strip_side(call, Side::kLeft); }
Result<Value> text_rstrip(const Call& call) { return strip_side(call, Side::kRight); }

// Whether the text has the argument, or one of a tuple of them, at its beginning or end.
Result<Value> has_affix(const Call& call, bool (*has)(std::string_view, std::string_view)) {
  const Value* argument = call.arguments[0];
  if (argument != nullptr && argument->as_list() != nullptr) {
    KVLANE_TRY(call.budget.spend(argument->weight()));
    for (const Value& item : argument->as_list()->items) {
      if (item.as_text() == nullptr)
        return call.wrong("takes strings, not " + std::string(item.kind()));
      if (has(self(call), *item.as_text())) return Value::boolean(true);
    }
    return Value::boolean(false);
  }
  KVLANE_ASSIGN(const std::string_view affix, call.text(0));
  KVLANE_TRY(call.budget.spend_bytes(affix.size()));
  return Value::boolean(has(self(call), affix));
}
Result<Value> text_startswith(const Call& call) {
  return has_affix(
      call, [](std::string_view text, std::string_view affix) { return text.starts_with(affix); });
}
Result<Value> text_endswith(const Call& call) {
  return has_affix(
      call, [](std::string_view text, std::string_view affix) { return text.ends_with(affix); });
}

Result<Value> text_split(const Call& call) {
  KVLANE_ASSIGN(const std::int64_t wanted, call.integer(1, -1));
  const std::int64_t splits_max = wanted < 0 ? kPartsMax : std::min(wanted, kPartsMax);
  const bool spaces = call.arguments[0] == nullptr || call.arguments[0]->is_none();
  std::vector<std::string_view> parts;
  if (spaces) {
    KVLANE_TRY(call.budget.spend_bytes(self(call).size()));
    parts = split_at_spaces(self(call), splits_max);
  } else {
    KVLANE_ASSIGN(const std::string_view separator, call.text(0));
    if (separator.empty()) return call.wrong("takes a separator that is not empty");
    KVLANE_TRY(call.budget.spend_search(self(call).size(), separator.size()));
    parts = split(self(call), separator, splits_max);
  }
  if (static_cast<std::int64_t>(parts.size()) > kPartsMax) {
    return exhausted(std::string(call.title) + " makes more than " + std::to_string(kPartsMax) +
                     " parts");
  }
  KVLANE_TRY(call.budget.spend_bytes(self(call).size()));
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(Value::text(std::string(part)));
  return make_list(std::move(items), call.budget);
}

Result<Value> text_replace(const Call& call) {
  KVLANE_ASSIGN(const std::string_view old, call.text(0));
  KVLANE_ASSIGN(const std::string_view with, call.text(1));
  KVLANE_ASSIGN(const std::int64_t times, call.integer(2, -1));
  if (old.empty())
    return unsupported(std::string(call.title) + " of the empty string is not supported");
  KVLANE_TRY(call.budget.spend_search(self(call).size(), old.size()));
  std::optional<std::string> text = replace(self(call), old, with, times, kRenderedBytesMax);
  if (!text) return exhausted(std::string(call.title) + " makes too long a text");
  return make_text(std::move(*text), call.budget);
}

// Only of ASCII: case beyond it is a matter of tables that Python and others disagree on.
Result<Value> change_case(const Call& call, char first, char last) {
  std::string text = self(call);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      return unsupported(std::string(call.title) + " of text beyond ASCII is not supported");
    }
    if (c >= first && c <= last) c = static_cast<char>(c ^ 0x20);
  }
  return make_text(std::move(text), call.budget);
}
Result<Value> text_upper(const Call& call) { return change_case(call, 'a', 'z'); }
Result<Value> text_lower(const Call& call) { return change_case(call, 'A', 'Z'); }

constexpr std::array<Builtin, 9> kTextMethods = {{
    {"endswith", {"suffix"}, text_endswith},
    {"lower", {}, text_lower},
    {"lstrip", {"chars"}, text_lstrip},
    {"replace", {"old", "new", "count"}, text_replace},
    {"rstrip", {"chars"}, text_rstrip},
    {"split", {"sep", "maxsplit"}, text_split},
    {"startswith", {"prefix"}, text_startswith},
    {"strip", {"chars"}, text_strip},
    {"upper", {}, text_upper},
}};

// ---- dicts ----

Result<Value> dict_get(const Call& call) {
  const Dict& dict = *call.input.as_dict();
  if (call.arguments[0] == nullptr) return call.wrong("lacks an argument");
  KVLANE_TRY(call.budget.spend(static_cast<std::int64_t>(dict.items.size())));
  const std::string* key = call.arguments[0]->as_text();  // nothing else can be a key
  const Value* value = key == nullptr ? nullptr : dict.find(*key);
  if (value != nullptr) return *value;
  return call.arguments[1] != nullptr ? *call.arguments[1] : Value::none();
}

Result<Value> dict_items(const Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call.input.as_dict()->items) {
    KVLANE_ASSIGN(Value pair,
                  make_list({Value::text(key), value}, call.budget, List::Kind::kTuple));
    items.push_back(std::move(pair));
  }
  return make_list(std::move(items), call.budget, List::Kind::kView);
}

Result<Value> dict_keys(const Call& call) {
  std::vector<Value> keys;
  for (const auto& item : call.input.as_dict()->items) keys.push_back(Value::text(item.first));
  return make_list(std::move(keys), call.budget, List::Kind::kView);
}

Result<Value> dict_values(const Call& call) {
  std::vector<Value> values;
  for (const auto& item : call.input.as_dict()->items) values.push_back(item.second);
  return make_list(std::move(values), call.budget, List::Kind::kView);
}

constexpr std::array<Builtin, 4> kDictMethods = {{
    {"get", {"key", "default"}, dict_get},
    {"items", {}, dict_items},
    {"keys", {}, dict_keys},
    {"values", {}, dict_values},
}};

// What Python has, whether kvlane does it or not.
constexpr std::array<std::string_view, 47> kPythonTextMethods = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr std::array<std::string_view, 11> kPythonDictMethods = {
    "clear", "copy",    "fromkeys",   "get",    "items", "keys",
    "pop",   "popitem", "setdefault", "update", "values"};
constexpr std::array<std::string_view, 11> kPythonListMethods = {
    "append", "clear", "copy",   "count",   "extend", "index",
    "insert", "pop",   "remove", "reverse", "sort"};

// ---- functions ----

Result<Value> raise_exception(const Call& call) {
  KVLANE_ASSIGN(const std::string_view words, call.text(0, ""));
  return invalid_argument("the template refuses: " + std::string(words));
}

Result<Value> range(const Call& call) {
  KVLANE_ASSIGN(const std::int64_t first, call.integer(0));
  const bool one = call.arguments[1] == nullptr;
  KVLANE_ASSIGN(const std::int64_t second, call.integer(1, 0));
  KVLANE_ASSIGN(const std::int64_t step, call.integer(2, 1));
  const std::int64_t start = one ? 0 : first;
  const std::int64_t stop = one ? first : second;
  if (step == 0) return call.wrong("takes a step other than 0");
  std::vector<Value> items;
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kPartsMax) {
      return exhausted("a range of more than " + std::to_string(kPartsMax) + " numbers");
    }
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return make_list(std::move(items), call.budget);
}

constexpr std::array<Builtin, 2> kFunctions = {{
    {"raise_exception", {"message"}, raise_exception},
    {"range", {"start", "stop", "step"}, range},
}};

// Dates as C's strftime writes them, for the directives that are the same everywhere.
Result<Value> strftime_now(const Values& arguments, const Clock& clock, Budget& budget) {
  constexpr std::string_view kDirectives = "aAbBdHIjmMpSyY%";
  constexpr std::size_t kFormatBytesMax = 256;
  const std::string* format = arguments.positional.size() == 1 && arguments.named.empty()
                                  ? arguments.positional[0].as_text()
                                  : nullptr;
  if (format == nullptr || format->size() > kFormatBytesMax) {
    return invalid_argument("the function 'strftime_now' takes one short string");
  }
  for (std::size_t at = format->find('%'); at != std::string::npos;
       at = format->find('%', at + 2)) {
    if (at + 1 == format->size() || kDirectives.find((*format)[at + 1]) == std::string_view::npos) {
      return unsupported("the function 'strftime_now' with '" + *format + "' is not supported");
    }
  }
  const std::tm now = clock();
  std::string text(16 * kFormatBytesMax, '\0');  // no directive writes more than 16 characters
  text.resize(std::strftime(text.data(), text.size(), format->c_str(), &now));
  return make_text(std::move(text), budget);
}

}  // namespace

Result<Value> call_method(std::string_view name, const Value& object, const Values& arguments,
                          Budget& budget) {
  if (object.as_text() != nullptr) {
    return run_builtin(kTextMethods, "string method", name, object, arguments, budget);
  }
  if (object.as_dict() != nullptr) {
    return run_builtin(kDictMethods, "dict method", name, object, arguments, budget);
  }
  if (is_python_method(object, name) || object.as_loop() != nullptr) {
    return unsupported("the method '" + std::string(name) + "' of " + std::string(object.kind()) +
                       " is not supported");
  }
  return invalid_argument(std::string(object.kind()) + " has no method '" + std::string(name) +
                          "'");
}

Result<Value> call_function(std::string_view name, const Values& arguments, const Clock& clock,
                            Budget& budget) {
  if (name == "strftime_now") return strftime_now(arguments, clock, budget);
  return run_builtin(kFunctions, "function", name, Value(), arguments, budget);
}

bool is_function(std::string_view name) {
  return name == "strftime_now" || name == "namespace" ||
         std::any_of(kFunctions.begin(), kFunctions.end(),
                     [&](const Builtin& builtin) { return builtin.name == name; });
}

bool is_python_method(const Value& value, std::string_view name) {
  const auto is_in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return (value.as_text() != nullptr && is_in(kPythonTextMethods)) ||
         (value.as_dict() != nullptr && is_in(kPythonDictMethods)) ||
         (value.as_list() != nullptr && is_in(kPythonListMethods));
}

}  // namespace kvlane::jinja
