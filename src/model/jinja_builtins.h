// The filters, tests, functions and methods that chat templates may use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlane/status.h"
#include "model/jinja_value.h"

namespace kvlane::jinja {

// Longest text that a template may build, in bytes: as much as the tokenizer takes.
inline constexpr std::size_t kRenderedBytesMax = 32U << 20;
// How much one rendering may do: 1 for each expression and statement, 1 for each 64 bytes of text
// made or compared. Known templates need some 50 for each message; this is a second or two.
inline constexpr std::int64_t kWorkMax = std::int64_t{8} << 20;

// What one rendering may still do.
class Budget {
 public:
  // kExhausted when the rendering has done too much.
  Status spend(std::int64_t work);
  // For making or reading `bytes` of text.
  Status spend_bytes(std::size_t bytes) { return spend(static_cast<std::int64_t>(bytes / 64)); }
  // For looking for `needle` bytes in `text` bytes, which at worst compares each with each.
  Status spend_search(std::size_t text, std::size_t needle) {
    return spend(static_cast<std::int64_t>((text / 64) * (1 + needle / 64)));
  }

 private:
  std::int64_t left_ = kWorkMax;
};

// Arguments of a call, evaluated.
struct Values {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Local time, for strftime_now.
using Clock = std::function<std::tm()>;

// Whether it can be run over only once: what a variable or an operator would make of it differs
// from what it makes of a list, and is not supported.
bool is_stream(const Value& value);
Status stream_error();

// Each fails with kUnsupported for a name or a form that kvlane does not do, with kInvalidArgument
// where Jinja would raise an error (raise_exception among them), and within the budget. Errors say
// nothing about the line.
Result<Value> call_filter(std::string_view name, const Value& input, const Values& arguments,
                          Budget& budget);
Result<bool> call_test(std::string_view name, const Value& input, const Values& arguments,
                       Budget& budget);
Result<Value> call_method(std::string_view name, const Value& object, const Values& arguments,
                          Budget& budget);
// Functions without state; `namespace` belongs to the interpreter.
Result<Value> call_function(std::string_view name, const Values& arguments, const Clock& clock,
                            Budget& budget);

// Whether a template finds a function with this name ("strftime_now is defined").
bool is_function(std::string_view name);
// Whether Python's string, dict or list has a method with this name. Reading one without calling it
// is not supported, and neither is a key of the same name behind a dot.
bool is_python_method(const Value& value, std::string_view name);

// What "{{ value }}" prints; lists and dicts are kUnsupported.
Result<std::string> to_text(const Value& value);
// What a for runs over, and what `list` makes: items, keys, characters.
Result<Value> to_list(const Value& value, Budget& budget);
// Python's `a in b`.
Result<bool> contains(const Value& container, const Value& item, Budget& budget);
// A list within the limits of depth and weight.
Result<Value> make_list(std::vector<Value> items, Budget& budget,
                        List::Kind kind = List::Kind::kList);
Result<Value> make_dict(std::vector<std::pair<std::string, Value>> items, Budget& budget);
// A text within the limit of size.
Result<Value> make_text(std::string text, Budget& budget);

}  // namespace kvlane::jinja
